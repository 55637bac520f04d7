// Where long arrays of a worker lie: in the library's registered memory, which servers read and write without a copy.
#ifndef PS_INTERNAL_MEMORY_H_
#define PS_INTERNAL_MEMORY_H_

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "gradwire.h"

namespace ps {
namespace detail {

class Memory {
 public:
  /// Shorter arrays are plain memory.
  static const size_t kLongBytes = 64 << 10;

  static Memory *Get() {
    // Arrays may be made until the process ends.
    static Memory *memory = new Memory();
    return memory;
  }

  /// Long arrays lie in this client's memory from now on, for as long as there is the client.
  void Use(const std::shared_ptr<GradwireClient> &client) {
    std::lock_guard<std::mutex> lock(mutex_);
    client_ = client;
    process_ = getpid();
  }

  /// Null where there is none: no client, or arrays have all that they may have. It outlives the client.
  std::shared_ptr<void> Allocate(size_t bytes) {
    // A forked child has none of the library's memory, and its parent's lock may be held for ever.
    if (process_ != getpid()) return nullptr;
    std::shared_ptr<GradwireClient> client;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      client = client_.lock();
    }
    GradwireBuffer *buffer = client ? gradwire_buffer_allocate_kept(client.get(), bytes) : nullptr;
    if (!buffer) return nullptr;
    return std::shared_ptr<void>(gradwire_buffer_data(buffer), [this, buffer](void *) {
      if (process_ == getpid()) gradwire_buffer_free(buffer);
    });
  }

 private:
  Memory() = default;

  std::atomic<pid_t> process_{0};
  std::mutex mutex_;
  std::weak_ptr<GradwireClient> client_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_MEMORY_H_
