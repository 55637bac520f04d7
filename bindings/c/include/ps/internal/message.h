// What programs look at of nodes and messages. How messages travel is the library's business.
#ifndef PS_INTERNAL_MESSAGE_H_
#define PS_INTERNAL_MESSAGE_H_

#include <string>
#include <type_traits>
#include <vector>

#include "ps/sarray.h"

namespace ps {

/// Types of values.
enum DataType { CHAR, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT, DOUBLE, OTHER };

template <typename V, typename W>
inline bool SameType() {
  return std::is_same<typename std::remove_cv<V>::type, W>::value;
}

template <typename V>
DataType GetDataType() {
  return SameType<V, char>()       ? CHAR
         : SameType<V, int8_t>()   ? INT8
         : SameType<V, int16_t>()  ? INT16
         : SameType<V, int32_t>()  ? INT32
         : SameType<V, int64_t>()  ? INT64
         : SameType<V, uint8_t>()  ? UINT8
         : SameType<V, uint16_t>() ? UINT16
         : SameType<V, uint32_t>() ? UINT32
         : SameType<V, uint64_t>() ? UINT64
         : SameType<V, float>()    ? FLOAT
         : SameType<V, double>()   ? DOUBLE
                                   : OTHER;
}

/// A process of the cluster.
struct Node {
  static const int kEmpty = -1;
  enum Role { SERVER, WORKER, SCHEDULER };
  Role role = WORKER;
  int id = kEmpty;
  int customer_id = 0;
  std::string hostname;
  int port = kEmpty;
  bool is_recovery = false;

  std::string ShortDebugString() const {
    const char *letter = role == SERVER ? "S" : role == WORKER ? "W" : "H";
    return id == kEmpty ? letter : letter + ('[' + std::to_string(id) + ']');
  }
};

/// What a message says of itself.
struct Meta {
  static const int kEmpty = -1;
  int head = kEmpty;
  int app_id = kEmpty;
  int customer_id = kEmpty;
  int timestamp = kEmpty;
  int sender = kEmpty;
  int recver = kEmpty;
  bool request = false;
  bool push = false;
  bool pull = false;
  bool simple_app = false;
  std::string body;
  int priority = 0;
};

/// A message as handlers of customers see it.
struct Message {
  Meta meta;
  std::vector<SArray<char>> data;
};

}  // namespace ps
#endif  // PS_INTERNAL_MESSAGE_H_
