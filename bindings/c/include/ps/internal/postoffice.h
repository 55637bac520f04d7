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
  /// In a server: this process has taken the place of one that failed. Where another server kept the journal of a handler, the handler
  /// gets its state back (KVServer::set_state_handles). False in workers: one that was restarted is a new member here.
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

namespace detail {

/// Frees a library object with the last who has it.
template <typename T>
std::shared_ptr<T> Share(T *made) {
  return std::shared_ptr<T>(made, Free());
}

/// The longest that one wait at a barrier may be, in milliseconds.
static const uint64_t kBarrierMs = 24ull * 3600 * 1000;

/// A node's id from the library's words for it.
inline int NodeOf(uint32_t group, uint32_t rank) {
  const int number = static_cast<int>(rank);
  return group == GRADWIRE_GROUP_SCHEDULER ? kScheduler
         : group == GRADWIRE_GROUP_SERVERS ? Postoffice::ServerRankToID(number)
                                           : Postoffice::WorkerRankToID(number);
}

}  // namespace detail

inline void Postoffice::Register(int customer_id) {
  bool is_first = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (clients_.count(customer_id) || server_ || scheduler_) return;
    is_first = !joins_;
    joins_ = true;
  }
  const auto settings = Settings(is_first);
  GradwireMessages *messages = nullptr;
  // Joining waits for the others, who may be threads of this process: without the lock.
  if (role_ == Node::WORKER) {
    GradwireClient *made = nullptr;
    detail::Must(gradwire_client_connect(settings.get(), &made), "starting a worker");
    const auto client = detail::Share(made);
    detail::Must(gradwire_client_messages(made, &messages), "starting a worker");
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_first) van_.node_.id = WorkerRankToID(static_cast<int>(gradwire_client_rank(made)));
    if (is_first) detail::Memory::Get()->Use(client);
    clients_[customer_id] = client;
    messages_[customer_id] = detail::Share(messages);
    Count(gradwire_client_workers(made), gradwire_client_servers(made));
  } else if (role_ == Node::SERVER) {
    GradwireServer *made = nullptr;
    detail::Must(gradwire_server_start(settings.get(), &made), "starting a server");
    const auto server = detail::Share(made);
    detail::Must(gradwire_server_messages(made, &messages), "starting a server");
    std::lock_guard<std::mutex> lock(mutex_);
    van_.node_.id = ServerRankToID(static_cast<int>(gradwire_server_rank(made)));
    van_.node_.is_recovery = gradwire_server_is_recovery(made);
    server_ = server;
    messages_[0] = detail::Share(messages);
    Count(gradwire_server_workers(made), gradwire_server_servers(made));
  } else {
    GradwireScheduler *made = nullptr;
    detail::Must(gradwire_scheduler_start(settings.get(), &made), "starting the scheduler");
    const auto scheduler = detail::Share(made);
    detail::Must(gradwire_scheduler_messages(made, &messages), "starting the scheduler");
    std::lock_guard<std::mutex> lock(mutex_);
    van_.node_.id = kScheduler;
    scheduler_ = scheduler;
    messages_[0] = detail::Share(messages);
    Count(gradwire_scheduler_workers(made), gradwire_scheduler_servers(made));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  van_.ready_ = true;
  if (role_ != Node::SCHEDULER && is_first) setenv("DMLC_RANK", std::to_string(my_rank()).c_str(), 1);
}

inline void Postoffice::Count(uint32_t workers, uint32_t servers) {
  // Another customer has said so before, and others may be reading it.
  if (num_workers_) return;
  num_workers_ = static_cast<int>(workers);
  num_servers_ = static_cast<int>(servers);
  const auto add = [this](int group_of_its_own, int id) {
    groups_[id] = {id};
    for (int group = 1; group < 8; ++group) {
      if (group & group_of_its_own) groups_[group].push_back(id);
    }
  };
  for (int rank = 0; rank < num_workers_; ++rank) add(kWorkerGroup, WorkerRankToID(rank));
  for (int rank = 0; rank < num_servers_; ++rank) {
    add(kServerGroup, ServerRankToID(rank));
    ranges_.push_back(Range(kMaxKey / num_servers_ * rank, kMaxKey / num_servers_ * (rank + 1)));
  }
  for (int group = 1; group < 8; group += 2) groups_[group].push_back(kScheduler);
}

inline GradwireCode Postoffice::Meet(int customer_id, int group) {
  const int own = is_worker() ? kWorkerGroup : is_server() ? kServerGroup : kScheduler;
  CHECK(group & own) << "a barrier of group " << group << " leaves this process out";
  const std::string name = "ps/" + std::to_string(group);
  const auto messages = this->messages(customer_id);
  GradwireCode code;
  do {
    code = gradwire_messages_barrier(messages.get(), name.c_str(), static_cast<uint32_t>(group), detail::kBarrierMs);
    // Somebody is at work for longer than a day: those who died would have ended the job.
  } while (code == GRADWIRE_CODE_DEADLINE);
  return code;
}

inline void Postoffice::Barrier(int customer_id, int group, bool) {
  if (GetNodeIDs(group).size() > 1) detail::Must(Meet(customer_id, group), "barrier");
}

inline void Postoffice::Finalize(int customer_id, bool do_barrier) {
  if (do_barrier) {
    const GradwireCode code = Meet(customer_id, kScheduler + kServerGroup + kWorkerGroup);
    // If others have left without it, or the job has ended, there is nothing to wait for. How the job ended is reported below.
    if (code != GRADWIRE_CODE_OK) LOG(WARNING) << "leaving without the others: " << gradwire_last_error();
  }
  Finish();
  Leave(customer_id);
  if (customer_id == 0 && exit_callback_) exit_callback_();
}

inline void Postoffice::Finish() {
  std::vector<std::shared_ptr<detail::Tasks>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &customer : customers_) {
      if (!customer.second->IsOwnThread()) all.push_back(customer.second->tasks());
    }
  }
  for (const auto &tasks : all) tasks->Drain();
}

inline void Postoffice::Leave(int customer_id) {
  std::shared_ptr<GradwireClient> client;
  std::shared_ptr<GradwireServer> server;
  std::shared_ptr<GradwireScheduler> scheduler;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto own = clients_.find(customer_id);
    if (own != clients_.end()) {
      client = own->second;
      clients_.erase(own);
    }
    if (customer_id == 0) {
      server = server_;
      scheduler = scheduler_;
      prepared_ = joins_ = false;
      van_.ready_ = false;
    }
  }
  // Leaving takes time: without the lock. The scheduler ends itself and the servers when all workers have left. What was
  // started is let go of however it ended, and nothing is thrown: programs leave in their last line, where nobody catches.
  std::string failure;
  const auto note = [&failure](GradwireCode code, const char *what) {
    if (code == GRADWIRE_CODE_OK) return;
    failure = std::string(what) + ": " + gradwire_last_error();
    LOG(ERROR) << failure;
  };
  if (client) {
    const GradwireCode lived = gradwire_client_check(client.get());
    if (lived != GRADWIRE_CODE_OK) note(lived, "the job ended before its time");
    note(gradwire_client_close(client.get()), "leaving");
  }
  if (server) note(gradwire_server_wait(server.get()), "the server's end");
  if (scheduler) note(gradwire_scheduler_wait(scheduler.get()), "the scheduler's end");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure.empty()) failure_ = failure;
  messages_.erase(customer_id);
  if (customer_id != 0) return;
  server_.reset();
  scheduler_.reset();
}

inline std::vector<int> Postoffice::GetDeadNodes(int) {
  std::vector<int> dead;
  if (!is_worker() || !van_.ready_) return dead;
  uint32_t group = 0, rank = 0;
  if (gradwire_client_dead_member(client(0).get(), &group, &rank)) {
    dead.push_back(detail::NodeOf(group, rank));
  }
  return dead;
}

inline void Postoffice::AddCustomer(Customer *customer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto id = std::make_pair(customer->app_id(), customer->customer_id());
  CHECK(customers_.emplace(id, customer).second)
      << "app " << id.first << " has a customer " << id.second << " in this process already";
}

inline void Postoffice::RemoveCustomer(Customer *customer) {
  std::lock_guard<std::mutex> lock(mutex_);
  customers_.erase(std::make_pair(customer->app_id(), customer->customer_id()));
}

inline Customer::Customer(int app_id, int customer_id, const RecvHandle &handle)
    : customer_id_(customer_id),
      handle_(handle),
      runner_(std::make_shared<detail::Runner>(app_id)),
      ledger_(std::make_shared<detail::Ledger>(app_id)) {
  Postoffice::Get()->AddCustomer(this);
  const auto runner = runner_;
  thread_ = std::thread([runner] { runner->Run(); });
}

inline Customer::~Customer() {
  Postoffice::Get()->RemoveCustomer(this);
  tasks()->Close();
  if (IsOwnThread()) {
    // The thread that deletes this object cannot join itself; it ends after the destructor.
    thread_.detach();
  } else {
    thread_.join();
  }
}

inline int Customer::NewRequest(int receiver, bool is_short) {
  return ledger_->NewRequest(static_cast<int>(Postoffice::Get()->GetNodeIDs(receiver).size()), is_short);
}

inline void Customer::WaitRequest(int timestamp) {
  CHECK(!IsOwnThread() || !ledger_->IsOpen(timestamp))
      << "request " << timestamp << " is waited for in a callback or handle, on the thread that callbacks run on; "
      << "wait elsewhere, or give the request a callback";
  // It stays for as long as this thread waits, though another one may close it.
  const auto client = Postoffice::Get()->FindClient(customer_id_);
  ledger_->Wait(timestamp, client.get());
}

}  // namespace ps

#define PS_VLOG(level) LOG_IF(INFO, (level) <= ::ps::Postoffice::Get()->verbose())

#endif  // PS_INTERNAL_POSTOFFICE_H_
