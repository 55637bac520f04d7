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

/// The longest that one wait at a barrier may be, in milliseconds.
static const uint64_t kBarrierMs = 24ull * 3600 * 1000;

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
    // Where others have left without it, or the job has ended, there is nothing to wait for. How it ended is told below.
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
    // It goes on with what deletes this, and ends by itself.
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
#endif  // PS_INTERNAL_POSTOFFICE_INL_H_
