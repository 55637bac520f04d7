// Where a worker's answers are taken in: at once on the library's thread, or, where that would hold up the library, by a thread of
// their own. It outlives the worker where an answer still may come.
#ifndef PS_INTERNAL_LANDINGS_H_
#define PS_INTERNAL_LANDINGS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace ps {
namespace detail {

class Landings {
 public:
  using Task = std::function<void()>;

  Landings() = default;
  Landings(const Landings &) = delete;
  Landings &operator=(const Landings &) = delete;
  ~Landings() { Close(); }

  /// Runs it on this thread, unless the worker is gone.
  template <typename Call>
  void Run(const Call &call) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) return;
      ++running_;
    }
    call();
    std::lock_guard<std::mutex> lock(mutex_);
    --running_;
    if (closed_) changed_.notify_all();
  }

  /// Runs it on the thread for long answers, unless the worker is gone.
  void Add(Task task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
    changed_.notify_all();
  }

  /// Waits for what is running; nothing runs afterwards.
  void Close() {
    std::deque<Task> dropped;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      closed_ = true;
      dropped.swap(tasks_);
      changed_.notify_all();
      changed_.wait(lock, [this] { return running_ == 0; });
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (closed_) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      Run(task);
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  size_t running_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_LANDINGS_H_
