// Key arrays that come again. A long one that a worker has sent twice is kept by the server, and later requests only name it.
#ifndef PS_INTERNAL_KEY_ARRAYS_H_
#define PS_INTERNAL_KEY_ARRAYS_H_

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "ps/sarray.h"

namespace ps {
namespace detail {

/// So many arrays are kept, for each worker and server.
const size_t kKeyArrays = 16;
/// Shorter ones are sent each time; longer ones would take too much memory.
const size_t kKeyArrayMinBytes = 4 << 10;
const size_t kKeyArrayMaxBytes = 4 << 20;

/// A worker's side. Requests to one server are served in their order, so that an array has come before the requests that name it.
class SentKeys {
 public:
  /// How the keys of a request are sent. `number` 0: the server does not keep them.
  struct Way {
    uint64_t number = 0;
    bool is_kept = false;
  };

  Way Look(size_t server, const SArray<Key> &keys) {
    Way way;
    const size_t bytes = keys.size() * sizeof(Key);
    if (bytes < kKeyArrayMinBytes || bytes > kKeyArrayMaxBytes) return way;
    std::lock_guard<std::mutex> lock(mutex_);
    std::deque<Entry> &entries = servers_[server];
    const uint64_t mark = MarkOf(keys);
    for (Entry &entry : entries) {
      if (entry.mark != mark || entry.size != keys.size()) continue;
      if (!entry.number) {
        // It comes for the second time.
        entry.keys.CopyFrom(keys);
        way.number = entry.number = NextNumber();
      } else if (std::memcmp(entry.keys.data(), keys.data(), bytes) == 0 && entry.is_kept) {
        way.number = entry.number;
        way.is_kept = true;
      }
      return way;
    }
    entries.push_back(Entry{mark, keys.size(), SArray<Key>(), 0, false});
    if (entries.size() > kKeyArrays) entries.pop_front();
    return way;
  }

  /// The request that brings the keys is on its way: those that are made from now on come after it.
  void Sent(size_t server, uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Entry &entry : servers_[server]) entry.is_kept |= entry.number == number;
  }

  /// A request has failed, which may have been one that brought keys.
  void Forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    servers_.clear();
  }

 private:
  struct Entry {
    uint64_t mark;
    size_t size;
    SArray<Key> keys;
    uint64_t number;
    bool is_kept;
  };

  /// Arrays with another mark differ.
  static uint64_t MarkOf(const SArray<Key> &keys) {
    return keys.front() * 31 + keys.back() * 17 + keys.data()[keys.size() / 2] * 7 + keys.data()[keys.size() / 3];
  }

  /// Those of all workers of a process differ: several may be one member of the cluster.
  static uint64_t NextNumber() {
    static std::atomic<uint64_t> last(0);
    return ++last;
  }

  std::mutex mutex_;
  std::map<size_t, std::deque<Entry>> servers_;
};

/// A server's side.
class KeptKeys {
 public:
  /// Replaces what a former process of the worker called by this number.
  SArray<Key> Keep(int sender, uint64_t number, const SArray<Key> &keys) {
    std::deque<Entry> &entries = senders_[sender];
    CHECK(keys.size() * sizeof(Key) <= kKeyArrayMaxBytes) << keys.size() << " keys are too many to be kept";
    Entry entry{number, SArray<Key>()};
    entry.keys.CopyFrom(keys);
    entries.push_front(entry);
    if (entries.size() > kKeyArrays) entries.pop_back();
    return entry.keys;
  }

  SArray<Key> Find(int sender, uint64_t number) {
    for (const Entry &entry : senders_[sender]) {
      if (entry.number == number) return entry.keys;
    }
    LOG(FATAL) << "its keys were to come with an earlier request, which has failed; make it again";
    return SArray<Key>();
  }

 private:
  struct Entry {
    uint64_t number;
    SArray<Key> keys;
  };

  std::map<int, std::deque<Entry>> senders_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_KEY_ARRAYS_H_
