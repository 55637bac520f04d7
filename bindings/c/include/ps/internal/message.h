// What programs look at of nodes and messages. How messages travel is the library's business.
#ifndef PS_INTERNAL_MESSAGE_H_
#define PS_INTERNAL_MESSAGE_H_

#include <string>
#include <type_traits>
#include <vector>

#include "ps/sarray.h"

namespace ps {

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
