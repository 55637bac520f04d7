// Which pairs go to which server.
#ifndef PS_INTERNAL_KV_SLICE_H_
#define PS_INTERNAL_KV_SLICE_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "ps/kv_app.h"

namespace ps {
namespace detail {

/// A vector as an array, for as long as the vector is as it is.
template <typename V>
SArray<V> Look(const std::vector<V> &vector) {
  return SArray<V>(const_cast<V *>(vector.data()), vector.size());
}

/// Refuses keys that are not sorted, or come twice, and says where.
inline void CheckKeys(const SArray<Key> &keys) {
  const Key *start = keys.data();
  // Most are in order: a loop that does not branch finds that out several times faster.
  size_t wrong = 0;
  for (size_t at = 1; at < keys.size(); ++at) wrong += start[at - 1] >= start[at] ? 1 : 0;
  if (wrong == 0) return;
  for (size_t at = 1; at < keys.size(); ++at) {
    CHECK(start[at - 1] < start[at]) << "key " << start[at] << " at position " << at
                                     << " is not greater than the one before it, " << start[at - 1]
                                     << "; pass sorted keys without duplicates";
  }
}

/// Each server gets the pairs whose keys are in its range; none of them is copied.
template <typename Val>
void SliceByRange(const KVPairs<Val> &send, const std::vector<Range> &ranges,
                  std::vector<std::pair<bool, KVPairs<Val>>> *sliced) {
  const size_t count = send.keys.size();
  sliced->assign(ranges.size(), std::make_pair(false, KVPairs<Val>()));
  CHECK(send.lens.empty() || send.lens.size() == count) << send.lens.size() << " lengths for " << count << " keys";
  size_t width = 0;
  if (send.lens.empty() && count) {
    width = send.vals.size() / count;
    CHECK_EQ(width * count, send.vals.size()) << "values do not go round: pass as many for each key, or lengths";
  }
  const Key *keys = send.keys.begin();
  size_t first = 0, value = 0;
  if (count && !ranges.empty()) {
    CHECK_GE(keys[0], ranges.front().begin()) << "the first key is below all servers' ranges";
  }
  for (size_t server = 0; server < ranges.size(); ++server) {
    const size_t last = std::lower_bound(keys + first, keys + count, ranges[server].end()) - keys;
    if (last == first) continue;
    auto &slice = (*sliced)[server];
    slice.first = true;
    slice.second.keys = send.keys.segment(first, last);
    size_t values = (last - first) * width;
    if (!send.lens.empty()) {
      slice.second.lens = send.lens.segment(first, last);
      for (const int length : slice.second.lens) {
        CHECK_GE(length, 0) << "a length is negative";
        values += static_cast<size_t>(length);
      }
    }
    // A pull has no values.
    if (!send.vals.empty()) {
      CHECK_LE(value + values, send.vals.size()) << "the lengths add up to more values than there are";
      slice.second.vals = send.vals.segment(value, value + values);
    }
    value += values;
    first = last;
  }
  CHECK_EQ(first, count) << "key " << keys[first] << " at position " << first << " is beyond all servers' ranges";
  CHECK(send.vals.empty() || value == send.vals.size()) << "the lengths add up to fewer values than there are";
}

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_KV_SLICE_H_
