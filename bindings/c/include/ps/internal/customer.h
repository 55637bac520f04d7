// A customer: a thread that runs what answers and messages bring, one at a time, and the count of what each request still
// waits for.
#ifndef PS_INTERNAL_CUSTOMER_H_
#define PS_INTERNAL_CUSTOMER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

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

}  // namespace detail

/// See above. Timestamps count from 0 and are the customer's own.
class Customer {
 public:
  using RecvHandle = std::function<void(const Message &received)>;

  Customer(int app_id, int customer_id, const RecvHandle &handle);
  ~Customer();
  Customer(const Customer &) = delete;
  Customer &operator=(const Customer &) = delete;

  int app_id() const { return app_id_; }
  int customer_id() const { return customer_id_; }

  /// A new request to a node or group.
  int NewRequest(int receiver);

  /// Waits until it has all its answers. Throws where it failed, with the reason.
  void WaitRequest(int timestamp) {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(timestamp >= 0 && timestamp < next_) << "timestamp " << timestamp << " is none of this customer's requests";
    // The library ends every request within its deadline.
    changed_.wait(lock, [this, timestamp] { return open_.count(timestamp) == 0; });
    const auto failed = failed_.find(timestamp);
    if (failed == failed_.end()) return;
    const std::string reason = failed->second;
    failed_.erase(failed);
    throw dmlc::Error(reason);
  }

  /// Answers so far; all of them where it has ended.
  int NumResponse(int timestamp) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto open = open_.find(timestamp);
    return open == open_.end() ? ended_answers_ : open->second.had;
  }

  /// Counts answers that come from nobody.
  void AddResponse(int timestamp, int count = 1) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto open = open_.find(timestamp);
    if (open == open_.end()) return;
    open->second.had += count;
    if (open->second.had < open->second.wanted) return;
    ended_answers_ = open->second.wanted;
    open_.erase(open);
    changed_.notify_all();
  }

  /// Ends a request that cannot get all its answers.
  void Fail(int timestamp, const std::string &reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_.erase(timestamp) == 0) return;
    LOG(ERROR) << "request " << timestamp << " of app " << app_id_ << ": " << reason;
    // Nobody may ever wait for it: what is kept of such is bounded.
    if (failed_.size() >= kFailedMax) failed_.erase(failed_.begin());
    failed_[timestamp] = reason;
    changed_.notify_all();
  }

  /// Gives the customer a message, as if it had come.
  void Accept(const Message &message) {
    tasks_->Add([this, message] { handle_(message); });
  }

  bool IsOwnThread() const { return thread_.get_id() == std::this_thread::get_id(); }

  /// Runs something on the customer's thread.
  const std::shared_ptr<detail::Tasks> &tasks() const { return tasks_; }

  /// Held while a handler of this customer runs, on whichever thread: they never run at once.
  std::recursive_mutex &handling() { return handling_; }

 private:
  static const size_t kFailedMax = 1024;
  struct Open {
    int wanted;
    int had;
  };

  void Run() {
    detail::Tasks::Task task;
    while (tasks_->Next(&task)) {
      try {
        std::lock_guard<std::recursive_mutex> lock(handling_);
        task();
      } catch (const std::exception &error) {
        LOG(ERROR) << "a handler or callback of app " << app_id_ << " failed: " << error.what();
      }
      task = nullptr;
    }
  }

  const int app_id_;
  const int customer_id_;
  RecvHandle handle_;
  std::shared_ptr<detail::Tasks> tasks_ = std::make_shared<detail::Tasks>();
  std::recursive_mutex handling_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int next_ = 0;
  int ended_answers_ = 0;
  std::map<int, Open> open_;
  std::map<int, std::string> failed_;
  std::thread thread_;
};

}  // namespace ps
#endif  // PS_INTERNAL_CUSTOMER_H_
