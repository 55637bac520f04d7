// Key-value pairs: workers push and pull them, servers' handlers keep them.
#ifndef PS_KV_APP_H_
#define PS_KV_APP_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ps/base.h"
#include "ps/internal/kv_wire.h"
#include "ps/simple_app.h"

namespace ps {

/// Keys, sorted and without duplicates, and their values one after the other: as many for each key, or `lens[i]` for the
/// i-th.
template <typename Val>
struct KVPairs {
  SArray<Key> keys;
  SArray<Val> vals;
  SArray<int> lens;
  int priority = 0;
};

/// What a server's handler knows of a request.
struct KVMeta {
  int cmd = 0;
  bool push = false;
  bool pull = false;
  /// Node id of the worker.
  int sender = 0;
  int timestamp = 0;
  /// Of the worker that asks.
  int customer_id = 0;
  /// Which of the server's requests it is. Timestamps of a worker that was restarted begin again.
  uint64_t request = 0;
};

}  // namespace ps

#include "ps/internal/kv_server.h"
#include "ps/internal/kv_worker.h"

#endif  // PS_KV_APP_H_
