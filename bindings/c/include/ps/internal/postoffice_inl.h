// How the postoffice joins and leaves, and its customers.
#ifndef PS_INTERNAL_POSTOFFICE_INL_H_
#define PS_INTERNAL_POSTOFFICE_INL_H_

#include <string>
#include <vector>

#include "ps/internal/postoffice.h"

namespace ps {

namespace detail {

/// Frees a library object with the last who has it.
template <typename T>
std::shared_ptr<T> Share(T *made) {
  return std::shared_ptr<T>(made, Free());
}

/// The end of a job is waited for as long as the job lasts: deaths and the scheduler's loss end it.
static const uint64_t kWholeJobMs = 365ull * 24 * 3600 * 1000;

}  // namespace detail

inline void Postoffice::Register(int customer_id) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (clients_.count(customer_id) || server_ || scheduler_) return;
  }
  const auto settings = Settings();
  // Joining waits for the others, who may be threads of this process: without the lock.
  if (role_ == Node::WORKER) {
    GradwireClient *made = nullptr;
    detail::Must(gradwire_client_connect(settings.get(), &made), "starting a worker");
    std::lock_guard<std::mutex> lock(mutex_);
    if (clients_.empty()) van_.node_.id = WorkerRankToID(static_cast<int>(gradwire_client_rank(made)));
    clients_[customer_id] = detail::Share(made);
  } else if (role_ == Node::SERVER) {
    GradwireServer *made = nullptr;
    detail::Must(gradwire_server_start(settings.get(), &made), "starting a server");
    std::lock_guard<std::mutex> lock(mutex_);
    van_.node_.id = ServerRankToID(static_cast<int>(gradwire_server_rank(made)));
    server_ = detail::Share(made);
  } else {
    GradwireScheduler *made = nullptr;
    detail::Must(gradwire_scheduler_start(settings.get(), &made), "starting the scheduler");
    std::lock_guard<std::mutex> lock(mutex_);
    van_.node_.id = kScheduler;
    scheduler_ = detail::Share(made);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  van_.ready_ = true;
  if (role_ != Node::SCHEDULER) setenv("DMLC_RANK", std::to_string(my_rank()).c_str(), 1);
}

inline void Postoffice::Barrier(int customer_id, int group, bool) {
  const int own = is_worker() ? kWorkerGroup : is_server() ? kServerGroup : kScheduler;
  CHECK(group & own) << "a barrier of group " << group << " leaves this process out";
  if (GetNodeIDs(group).size() <= 1) return;
  const std::string name = "ps/" + std::to_string(group);
  if (!is_worker()) return;
  const auto client = this->client(customer_id);
  detail::Must(gradwire_barrier(client.get(), name.c_str(), GRADWIRE_GROUP_WORKERS), "barrier");
}

inline void Postoffice::Finalize(int customer_id, bool do_barrier) {
  if (do_barrier) Barrier(customer_id, kScheduler + kServerGroup + kWorkerGroup);
  Leave(customer_id);
  if (customer_id == 0 && exit_callback_) exit_callback_();
}

inline void Postoffice::Leave(int customer_id) {
  // Leaving takes time: without the lock.
  std::map<int, std::shared_ptr<GradwireClient>> clients;
  std::shared_ptr<GradwireServer> server;
  std::shared_ptr<GradwireScheduler> scheduler;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (customer_id == 0) {
      clients.swap(clients_);
      server = server_;
      scheduler = scheduler_;
      prepared_ = false;
      van_.ready_ = false;
    } else {
      const auto own = clients_.find(customer_id);
      if (own != clients_.end()) clients.insert(*own);
      if (own != clients_.end()) clients_.erase(own);
    }
  }
  for (const auto &client : clients) detail::Must(gradwire_client_close(client.second.get()), "leaving");
  // The scheduler ends them when all workers have left.
  if (server) detail::Must(gradwire_server_wait(server.get()), "the server's end");
  if (scheduler) detail::Must(gradwire_scheduler_wait(scheduler.get()), "the scheduler's end");
  if (customer_id != 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  server_.reset();
  scheduler_.reset();
}

inline std::vector<int> Postoffice::GetDeadNodes(int) {
  std::vector<int> dead;
  if (!is_worker() || !van_.ready_) return dead;
  uint32_t group = 0, rank = 0;
  if (gradwire_client_dead_member(client(0).get(), &group, &rank)) {
    const int number = static_cast<int>(rank);
    dead.push_back(group == GRADWIRE_GROUP_SCHEDULER ? kScheduler
                   : group == GRADWIRE_GROUP_SERVERS ? ServerRankToID(number)
                                                     : WorkerRankToID(number));
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
    : app_id_(app_id), customer_id_(customer_id), handle_(handle) {
  Postoffice::Get()->AddCustomer(this);
  thread_ = std::thread(&Customer::Run, this);
}

inline Customer::~Customer() {
  Postoffice::Get()->RemoveCustomer(this);
  tasks_->Close();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

inline int Customer::NewRequest(int receiver) {
  const int wanted = static_cast<int>(Postoffice::Get()->GetNodeIDs(receiver).size());
  std::lock_guard<std::mutex> lock(mutex_);
  const int timestamp = next_++;
  if (wanted) open_[timestamp] = Open{wanted, 0};
  return timestamp;
}

}  // namespace ps
#endif  // PS_INTERNAL_POSTOFFICE_INL_H_
