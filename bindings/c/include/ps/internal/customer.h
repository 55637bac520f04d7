// A customer: a thread that runs what answers and messages bring, one at a time, and the count of what each request still
// waits for.
#ifndef PS_INTERNAL_CUSTOMER_H_
#define PS_INTERNAL_CUSTOMER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "ps/internal/library.h"
#include "ps/internal/message.h"

namespace ps {

namespace detail {

/// Work for a customer's thread. It outlives the customer where an answer still may come.
class Tasks {
 public:
  using Task = std::function<void()>;

  /// Dropped where the customer is gone, which false tells.
  bool Add(Task task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    tasks_.push_back(std::move(task));
    came_.notify_one();
    return true;
  }

  /// Waits until everything that was there before is done, or dropped.
  void Drain() {
    auto done = std::make_shared<std::promise<void>>();
    auto ended = done->get_future();
    if (!Add([done] { done->set_value(); })) return;
    done.reset();
    // Broken where the task was dropped.
    ended.wait();
  }

  void Close() {
    std::deque<Task> dropped;
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    dropped.swap(tasks_);
    came_.notify_one();
  }

  /// False when it is closed.
  bool Next(Task *task) {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    if (closed_) return false;
    *task = std::move(tasks_.front());
    tasks_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Task> tasks_;
  bool closed_ = false;
};

/// Which of a customer's requests are open, and which failed. It outlives the customer where somebody still counts answers.
///
/// A failed request never reads as one that went well, whenever it is asked about. What is kept of failures is bounded: the
/// words of the last ones, and ranges of timestamps, of which the two oldest become one where there are too many. Requests
/// between those two, which are long over, then read as failed.
class Ledger {
 public:
  explicit Ledger(int app_id) : app_id_(app_id) {}

  /// `is_short`: it is answered so soon that a thread that waits for it receives the answers itself.
  int NewRequest(int wanted, bool is_short = false) {
    std::lock_guard<std::mutex> lock(mutex_);
    const int timestamp = next_++;
    if (wanted) open_[timestamp] = Open{wanted, 0, is_short};
    return timestamp;
  }

  /// Waits until it has all its answers. Throws where it failed, each time, with the reason. For a short request this thread works
  /// for the client meanwhile.
  void Wait(int timestamp, const GradwireClient *client = nullptr) {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(timestamp >= 0 && timestamp < next_) << "timestamp " << timestamp << " is none of this customer's requests";
    const auto open = open_.find(timestamp);
    if (client && open != open_.end() && open->second.is_short) {
      lock.unlock();
      Waiter waiter{this, timestamp};
      gradwire_client_wait(client, &Waiter::IsOver, &Waiter::Sleep, &waiter);
      lock.lock();
    }
    Sleep(timestamp, &lock);
    const auto reason = reasons_.find(timestamp);
    if (reason != reasons_.end()) throw dmlc::Error(reason->second);
    if (!HasFailed(timestamp)) return;
    throw dmlc::Error("request " + std::to_string(timestamp) + " failed, or is older than " +
                      std::to_string(kRangesMax) + " stretches of failed ones; the log has the reasons");
  }

  bool IsOpen(int timestamp) {
    std::lock_guard<std::mutex> lock(mutex_);
    return open_.count(timestamp) != 0;
  }

  /// Answers so far; all of them where it has ended.
  int Answers(int timestamp) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto open = open_.find(timestamp);
    return open == open_.end() ? ended_answers_ : open->second.had;
  }

  void Add(int timestamp, int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto open = open_.find(timestamp);
    if (open == open_.end()) return;
    open->second.had += count;
    if (open->second.had < open->second.wanted) return;
    ended_answers_ = open->second.wanted;
    open_.erase(open);
    changed_.notify_all();
  }

  void Fail(int timestamp, const std::string &reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_.erase(timestamp) == 0) return;
    LOG(ERROR) << "request " << timestamp << " of app " << app_id_ << ": " << reason;
    if (reasons_.size() >= kReasonsMax) reasons_.erase(reasons_.begin());
    reasons_[timestamp] = reason;
    NoteFailure(timestamp);
    changed_.notify_all();
  }

 private:
  static const size_t kReasonsMax = 1024;
  static const size_t kRangesMax = 1024;
  struct Open {
    int wanted;
    int had;
    bool is_short;
  };
  struct Waiter {
    Ledger *ledger;
    int timestamp;

    static int IsOver(void *context) {
      const auto *self = static_cast<Waiter *>(context);
      return self->ledger->IsOpen(self->timestamp) ? 0 : 1;
    }
    static void Sleep(void *context) {
      const auto *self = static_cast<Waiter *>(context);
      std::unique_lock<std::mutex> lock(self->ledger->mutex_);
      self->ledger->Sleep(self->timestamp, &lock);
    }
  };

  /// Until it has all its answers: the library ends every request within its deadline.
  void Sleep(int timestamp, std::unique_lock<std::mutex> *lock) {
    changed_.wait(*lock, [this, timestamp] { return open_.count(timestamp) == 0; });
  }

  bool HasFailed(int timestamp) const {
    auto after = failed_.upper_bound(timestamp);
    return after != failed_.begin() && timestamp <= (--after)->second;
  }

  void NoteFailure(int timestamp) {
    if (HasFailed(timestamp)) return;
    auto at = failed_.emplace(timestamp, timestamp).first;
    const auto next = std::next(at);
    if (next != failed_.end() && next->first == timestamp + 1) {
      at->second = next->second;
      failed_.erase(next);
    }
    if (at != failed_.begin() && std::prev(at)->second == timestamp - 1) {
      std::prev(at)->second = at->second;
      failed_.erase(at);
    }
    if (failed_.size() <= kRangesMax) return;
    const auto second = std::next(failed_.begin());
    failed_.begin()->second = second->second;
    failed_.erase(second);
  }

  const int app_id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int next_ = 0;
  int ended_answers_ = 0;
  std::map<int, Open> open_;
  std::map<int, std::string> reasons_;
  /// First and last timestamps, both of them failed.
  std::map<int, int> failed_;
};

/// What a customer's thread needs: it may end after the customer, which a handler may delete.
struct Runner {
  explicit Runner(int app) : app_id(app) {}

  void Run() {
    Tasks::Task task;
    while (tasks->Next(&task)) {
      std::string reason;
      const auto handle = [&] {
        std::lock_guard<std::recursive_mutex> lock(handling);
        task();
      };
      if (!Ran(handle, &reason)) LOG(ERROR) << "a handler or callback of app " << app_id << " failed: " << reason;
      task = nullptr;
    }
  }

  const int app_id;
  const std::shared_ptr<Tasks> tasks = std::make_shared<Tasks>();
  std::recursive_mutex handling;
};

}  // namespace detail

/// See above. Timestamps count from 0 and are the customer's own. It may be deleted by what runs on its thread.
class Customer {
 public:
  using RecvHandle = std::function<void(const Message &received)>;

  Customer(int app_id, int customer_id, const RecvHandle &handle);
  ~Customer();
  Customer(const Customer &) = delete;
  Customer &operator=(const Customer &) = delete;

  int app_id() const { return runner_->app_id; }
  int customer_id() const { return customer_id_; }

  /// A new request to a node or group; a short one is answered soon.
  int NewRequest(int receiver, bool is_short = false);

  /// Waits until it has all its answers. Throws where it failed, with the reason.
  void WaitRequest(int timestamp);

  /// Answers so far; all of them where it has ended.
  int NumResponse(int timestamp) { return ledger_->Answers(timestamp); }

  /// Counts answers that come from nobody.
  void AddResponse(int timestamp, int count = 1) { ledger_->Add(timestamp, count); }

  /// Ends a request that cannot get all its answers.
  void Fail(int timestamp, const std::string &reason) { ledger_->Fail(timestamp, reason); }

  /// Gives the customer a message, as if it had come.
  void Accept(const Message &message) {
    const RecvHandle handle = handle_;
    tasks()->Add([handle, message] { handle(message); });
  }

  bool IsOwnThread() const { return thread_.get_id() == std::this_thread::get_id(); }

  /// Runs something on the customer's thread.
  const std::shared_ptr<detail::Tasks> &tasks() const { return runner_->tasks; }

  /// For those who count answers after something that may delete the customer.
  const std::shared_ptr<detail::Ledger> &ledger() const { return ledger_; }

  /// Held while a handler of this customer runs, on whichever thread: they never run at once.
  std::recursive_mutex &handling() { return runner_->handling; }

 private:
  const int customer_id_;
  RecvHandle handle_;
  const std::shared_ptr<detail::Runner> runner_;
  const std::shared_ptr<detail::Ledger> ledger_;
  std::thread thread_;
};

}  // namespace ps
#endif  // PS_INTERNAL_CUSTOMER_H_
