// Keys and the numbers of nodes and groups.
#ifndef PS_BASE_H_
#define PS_BASE_H_

#include <limits>

#include "ps/internal/utils.h"

namespace ps {

#if USE_KEY32
using Key = uint32_t;
#else
using Key = uint64_t;
#endif

/// The largest key there is.
static const Key kMaxKey = std::numeric_limits<Key>::max();
/// The scheduler, as a node and as a group.
static const int kScheduler = 1;
/// All servers. Groups can be added up.
static const int kServerGroup = 2;
/// All workers.
static const int kWorkerGroup = 4;

}  // namespace ps
#endif  // PS_BASE_H_
