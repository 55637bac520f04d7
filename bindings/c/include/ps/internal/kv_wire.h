// What goes before the keys and values of a request and its reply. Lengths are in bytes. The body is keys, values and
// lengths, one after the other.
#ifndef PS_INTERNAL_KV_WIRE_H_
#define PS_INTERNAL_KV_WIRE_H_

#include <cstdint>
#include <cstring>

#include "ps/internal/library.h"
#include "ps/internal/message.h"
#include "ps/sarray.h"

namespace ps {
namespace detail {

struct KVRequestHead {
  int32_t cmd;
  int32_t customer_id;
  int32_t timestamp;
  uint16_t flags;
  /// Their type, by number and size, so that a server of another type refuses them.
  uint8_t val_type;
  uint8_t val_size;
  uint64_t key_bytes;
  uint64_t val_bytes;
  uint64_t len_bytes;
  /// The server keeps the keys under this number; where none come along, it has them. 0: they are not kept.
  uint64_t keys_number;
};
static_assert(sizeof(KVRequestHead) == 48, "a head has no padding");

struct KVReplyHead {
  uint64_t key_bytes;
  uint64_t val_bytes;
  uint64_t len_bytes;
  /// The keys are the request's, and were not sent again.
  uint64_t same_keys;
};
static_assert(sizeof(KVReplyHead) == 32, "a head has no padding");

const uint16_t kPush = 1;
const uint16_t kPull = 2;

/// As a head says it.
template <typename Val>
uint8_t SizeOf() {
  static_assert(sizeof(Val) < 256, "values of a KVWorker or KVServer are plain numbers");
  return static_cast<uint8_t>(sizeof(Val));
}

/// Reads a head; false where it is none.
template <typename Head>
bool ReadHead(const void *bytes, uint64_t count, Head *head) {
  if (count != sizeof(Head)) return false;
  std::memcpy(head, bytes, sizeof(Head));
  return true;
}

/// Part of a body as an array that keeps the body's owner. Parts that do not lie at a multiple of their elements' size are
/// copied.
template <typename V>
SArray<V> PartOf(const std::shared_ptr<void> &owner, const char *start, uint64_t bytes) {
  SArray<V> part;
  const size_t count = static_cast<size_t>(bytes / sizeof(V));
  if (count == 0) return part;
  if (reinterpret_cast<uintptr_t>(start) % alignof(V)) {
    part.resize(count);
    std::memcpy(static_cast<void *>(part.data()), start, count * sizeof(V));
    return part;
  }
  V *first = const_cast<V *>(reinterpret_cast<const V *>(start));
  part.reset(first, count, [owner](V *) {});
  return part;
}

/// The body of a request, as arrays. Its values may stay in the worker's memory, which gets them back when the last array of them is
/// gone. Whatever else is there is copied.
class RequestBody {
 public:
  explicit RequestBody(const std::shared_ptr<GradwireRequest> &request) : request_(request) {}

  /// Is there nothing behind so many bytes?
  bool EndsAt(uint64_t bytes) const { return !gradwire_request_part(request_.get(), bytes, 1, nullptr); }

  /// The values, which may stay in the worker's memory. To be called once.
  template <typename V>
  SArray<V> TakeValues(uint64_t offset, uint64_t bytes) {
    const char *start = Part(offset, bytes, nullptr);
    if (bytes < Memory::kLongBytes) return PartOf<V>(request_, start, bytes);
    const std::shared_ptr<GradwireRequest> request = request_;
    values_ = std::shared_ptr<void>(request.get(), [request](void *) { gradwire_request_release(request.get()); });
    return PartOf<V>(values_, start, bytes);
  }

  template <typename V>
  SArray<V> Take(uint64_t offset, uint64_t bytes) {
    bool lent = false;
    const char *start = Part(offset, bytes, &lent);
    const SArray<V> part = PartOf<V>(request_, start, bytes);
    if (!lent) return part;
    SArray<V> copy;
    copy.CopyFrom(part);
    return copy;
  }

  /// All is taken. From here on only arrays of the values keep them.
  void Done() {
    if (!values_) gradwire_request_release(request_.get());
    values_.reset();
  }

 private:
  const char *Part(uint64_t offset, uint64_t bytes, bool *lent) {
    const void *start = gradwire_request_part(request_.get(), offset, bytes, lent);
    CHECK(start || bytes == 0) << "its body is cut short";
    return static_cast<const char *>(start);
  }

  std::shared_ptr<GradwireRequest> request_;
  std::shared_ptr<void> values_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_KV_WIRE_H_
