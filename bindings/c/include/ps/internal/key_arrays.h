// Key arrays that come again. A long one that a worker has sent twice is kept by the server, and later requests only name it.
#ifndef PS_INTERNAL_KEY_ARRAYS_H_
#define PS_INTERNAL_KEY_ARRAYS_H_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "ps/internal/state_bytes.h"
#include "ps/sarray.h"

namespace ps {
namespace detail {

/// So many arrays a worker names, for each server.
const size_t kKeyArrays = 8;
/// A server keeps more of them: threads of a worker may send two arrays in another order than they were numbered in.
const size_t kKeptKeyArrays = 2 * kKeyArrays;
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
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry &entry) {
      return entry.mark == mark && entry.size == keys.size();
    });
    if (found == entries.end()) {
      entries.push_back(Entry{mark, keys.size(), std::vector<Key>(), 0, false});
    } else if (found->number == 0) {
      // It comes for the second time. Its place is that of its number: so an array that is named is one of the last that the server got.
      Entry entry = std::move(*found);
      entries.erase(found);
      entry.keys.assign(keys.begin(), keys.end());
      way.number = entry.number = NextNumber();
      entries.push_back(std::move(entry));
    } else if (found->is_kept && std::memcmp(found->keys.data(), keys.data(), bytes) == 0) {
      way.number = found->number;
      way.is_kept = true;
    }
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
    std::vector<Key> keys;
    uint64_t number;
    bool is_kept;
  };

  /// Arrays with another mark differ.
  static uint64_t MarkOf(const SArray<Key> &keys) {
    return keys.front() * 31 + keys.back() * 17 + keys.data()[keys.size() / 2] * 7 + keys.data()[keys.size() / 3];
  }

  /// Those of all workers of a process differ, and those of a process that replaces another one: it has the rank of that one.
  static uint64_t NextNumber() {
    static std::atomic<uint64_t> last(Random());
    const uint64_t number = ++last;
    return number ? number : ++last;
  }

  static uint64_t Random() {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }

  std::mutex mutex_;
  std::map<size_t, std::deque<Entry>> servers_;
};

/// A server's side.
class KeptKeys {
 public:
  SArray<Key> Keep(int sender, int customer, uint64_t number, const SArray<Key> &keys) {
    std::deque<Entry> &entries = senders_[std::make_pair(sender, customer)];
    CHECK(keys.size() * sizeof(Key) <= kKeyArrayMaxBytes) << keys.size() << " keys are too many to be kept";
    Entry entry{number, SArray<Key>()};
    entry.keys.CopyFrom(keys);
    entries.push_front(entry);
    if (entries.size() > kKeptKeyArrays) entries.pop_back();
    return entry.keys;
  }

  SArray<Key> Find(int sender, int customer, uint64_t number) {
    for (const Entry &entry : senders_[std::make_pair(sender, customer)]) {
      if (entry.number == number) return entry.keys;
    }
    LOG(FATAL) << "its keys were to come with an earlier request, which has failed; make it again";
    return SArray<Key>();
  }

  /// All arrays. They belong to a server's state: without them, another process could not serve requests that name them.
  void Save(StateWriter *to) const {
    to->Number(senders_.size());
    for (const auto &sender : senders_) {
      to->Value<int32_t>(sender.first.first);
      to->Value<int32_t>(sender.first.second);
      to->Number(sender.second.size());
      for (const Entry &entry : sender.second) {
        to->Number(entry.number);
        to->Array(entry.keys);
      }
    }
  }

  static KeptKeys Load(StateReader *from) {
    KeptKeys kept;
    for (uint64_t senders = from->Number(); senders > 0; --senders) {
      const int sender = from->Value<int32_t>();
      const int customer = from->Value<int32_t>();
      std::deque<Entry> &entries = kept.senders_[std::make_pair(sender, customer)];
      CHECK(entries.empty()) << "this is no saved state: it has node " << sender << " twice";
      for (uint64_t left = from->Number(kKeptKeyArrays); left > 0; --left) {
        const uint64_t number = from->Number();
        entries.push_back(Entry{number, from->Array<Key>(kKeyArrayMaxBytes / sizeof(Key))});
      }
    }
    return kept;
  }

 private:
  struct Entry {
    uint64_t number;
    SArray<Key> keys;
  };

  /// By worker and customer: each numbers its own.
  std::map<std::pair<int, int>, std::deque<Entry>> senders_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_KEY_ARRAYS_H_
