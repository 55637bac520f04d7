// This process in the cluster: its role and rank, groups, barriers, and who is there.
#ifndef PS_INTERNAL_POSTOFFICE_H_
#define PS_INTERNAL_POSTOFFICE_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ps/base.h"
#include "ps/internal/customer.h"
#include "ps/internal/library.h"
#include "ps/internal/van.h"
#include "ps/range.h"

namespace ps {

/// One for the process, as programs written for ps-lite expect. It starts one member of the cluster for the role that
/// DMLC_ROLE says; in a worker, one more for each further customer that is started.
class Postoffice {
 public:
  using Callback = std::function<void()>;

  static Postoffice *Get() {
    static Postoffice office;
    return &office;
  }
  static Postoffice *GetWorker(int = 0) { return Get(); }
  static Postoffice *GetServer(int = 0) { return Get(); }
  static Postoffice *GetScheduler() { return Get(); }

  Postoffice(const Postoffice &) = delete;
  Postoffice &operator=(const Postoffice &) = delete;

  /// The role, and the rank where it is not negative, that the next Start takes in place of the environment's.
  void Choose(Node::Role role, int rank) {
    static const char *const names[] = {"server", "worker", "scheduler"};
    std::lock_guard<std::mutex> lock(mutex_);
    chosen_role_ = names[role];
    chosen_rank_ = rank;
  }

  void Start(int customer_id, const char *argv0, bool do_barrier);
  void Finalize(int customer_id, bool do_barrier = true);

  /// The members of a group, or the one node, by id.
  const std::vector<int> &GetNodeIDs(int node_or_group) const {
    const auto found = groups_.find(node_or_group);
    CHECK(found != groups_.end()) << "there is no node or group " << node_or_group << " in this cluster";
    return found->second;
  }

  /// Which keys each server has: equal ranges, in order of rank.
  const std::vector<Range> &GetServerKeyRanges() const { return ranges_; }

  /// Called by Finalize when this process has left, however the job ended.
  void RegisterExitCallback(const Callback &callback) { exit_callback_ = callback; }

  /// Why the job that this process left last ended otherwise than in good order; empty where it did not. Finalize logs it and
  /// throws nothing.
  std::string failure() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

  static int WorkerRankToID(int rank) { return rank * 2 + 9; }
  static int ServerRankToID(int rank) { return rank * 2 + 8; }
  static int IDtoRank(int id) { return std::max((id - 8) / 2, 0); }

  int num_workers() const { return num_workers_; }
  int num_servers() const { return num_servers_; }
  int my_rank() const { return IDtoRank(van_.node_.id); }
  int is_worker() const { return role_ == Node::WORKER; }
  int is_server() const { return role_ == Node::SERVER; }
  int is_scheduler() const { return role_ == Node::SCHEDULER; }
  int verbose() const { return verbose_; }
  /// A process that comes back after its death is a new member here, so this is never one that goes on for another.
  bool is_recovery() const { return van_.node_.is_recovery; }
  Van *van() { return &van_; }

  /// Waits until all members of the group are here. This process is one of them.
  void Barrier(int customer_id, int group, bool = true);
  void Barrier(int group) { Barrier(0, group); }

  /// Members that died. The library notices by itself: the bound is `deadlines.silence_ms`, and `seconds` is ignored.
  std::vector<int> GetDeadNodes(int seconds = 60);

  void AddCustomer(Customer *customer);
  void RemoveCustomer(Customer *customer);
  /// Null where there is none.
  Customer *GetCustomer(int app_id, int customer_id, int = 0) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = customers_.find(std::make_pair(app_id, customer_id));
    return found == customers_.end() ? nullptr : found->second;
  }

  /// The library's client for a customer: its own where it was started, else the first customer's.
  std::shared_ptr<GradwireClient> client(int customer_id) const {
    const auto found = FindClient(customer_id);
    CHECK(found) << "this process is no started worker: call Start first, with DMLC_ROLE=worker";
    return found;
  }

  /// As `client`; null in a process that is no started worker.
  std::shared_ptr<GradwireClient> FindClient(int customer_id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto own = clients_.find(customer_id);
    if (own != clients_.end()) return own->second;
    return clients_.empty() ? nullptr : clients_.begin()->second;
  }

  /// The library's messages of the member that a customer belongs to.
  std::shared_ptr<GradwireMessages> messages(int customer_id) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto own = messages_.find(customer_id);
    if (own != messages_.end()) return own->second;
    CHECK(!messages_.empty()) << "this process is not started: call Start first";
    return messages_.begin()->second;
  }

  /// The library's server, null after Finalize.
  std::shared_ptr<GradwireServer> server() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return server_;
  }

 private:
  Postoffice() = default;
  void Prepare(const char *argv0);
  void Register(int customer_id);
  /// Everybody's places, once the cluster has said how many there are.
  void Count(uint32_t workers, uint32_t servers);
  GradwireCode Meet(int customer_id, int group);
  /// Handlers that run return, and what came for customers is taken.
  void Finish();
  void Leave(int customer_id);
  std::unique_ptr<GradwireSettings, detail::Free> Settings(bool is_first) const;

  mutable std::mutex mutex_;
  Node::Role role_ = Node::WORKER;
  int num_workers_ = 0;
  int num_servers_ = 0;
  int verbose_ = 0;
  bool prepared_ = false;
  /// The first customer is joining, or has joined.
  bool joins_ = false;
  std::string failure_;
  std::string chosen_role_;
  int chosen_rank_ = -1;
  Van van_;
  std::map<int, std::vector<int>> groups_;
  std::vector<Range> ranges_;
  std::map<int, std::shared_ptr<GradwireClient>> clients_;
  std::map<int, std::shared_ptr<GradwireMessages>> messages_;
  std::shared_ptr<GradwireServer> server_;
  std::shared_ptr<GradwireScheduler> scheduler_;
  std::map<std::pair<int, int>, Customer *> customers_;
  Callback exit_callback_;
};

inline std::unique_ptr<GradwireSettings, detail::Free> Postoffice::Settings(bool is_first) const {
  GradwireSettings *made = nullptr;
  detail::Must(gradwire_settings_new(&made), "settings");
  std::unique_ptr<GradwireSettings, detail::Free> settings(made);
  for (const auto &variable : Environment::Get()->own()) {
    detail::Must(gradwire_settings_variable(made, variable.first.c_str(), variable.second.c_str()), "settings");
  }
  if (!chosen_role_.empty()) {
    detail::Must(gradwire_settings_variable(made, "DMLC_ROLE", chosen_role_.c_str()), "settings");
  }
  if (!is_first) {
    // A rank that was given is the first customer's; the others take what nobody asks for.
    detail::Must(gradwire_settings_set(made, "node.rank", std::to_string(GRADWIRE_LAST_RANK).c_str()), "settings");
  } else if (chosen_rank_ >= 0 && role_ != Node::SCHEDULER) {
    detail::Must(gradwire_settings_set(made, "node.rank", std::to_string(chosen_rank_).c_str()), "settings");
  }
  detail::Must(gradwire_settings_log(made), "settings");
  return settings;
}

inline void Postoffice::Prepare(const char *) {
  const auto must = [](const char *name) {
    const char *value = Environment::Get()->find(name);
    CHECK(value) << name << " is not set; a launcher sets it, or the program with ps::Environment::Init";
    return std::string(value);
  };
  const std::string role = chosen_role_.empty() ? must("DMLC_ROLE") : chosen_role_;
  CHECK(role == "worker" || role == "server" || role == "scheduler")
      << "DMLC_ROLE is " << role << "; it has to be worker, server or scheduler";
  role_ = role == "worker" ? Node::WORKER : role == "server" ? Node::SERVER : Node::SCHEDULER;
  verbose_ = GetEnv("PS_VERBOSE", 0);
  van_.node_ = Node();
  van_.node_.role = role_;
  num_workers_ = num_servers_ = 0;
  groups_.clear();
  ranges_.clear();
  failure_.clear();
}

inline void Postoffice::Start(int customer_id, const char *argv0, bool do_barrier) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!prepared_) Prepare(argv0);
    prepared_ = true;
  }
  Register(customer_id);
  if (do_barrier) Barrier(customer_id, kScheduler + kServerGroup + kWorkerGroup);
}

}  // namespace ps

#define PS_VLOG(level) LOG_IF(INFO, (level) <= ::ps::Postoffice::Get()->verbose())

#include "ps/internal/postoffice_inl.h"
#endif  // PS_INTERNAL_POSTOFFICE_H_
