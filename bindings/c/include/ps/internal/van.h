// What programs ask about this node. It moves nothing: the library does.
#ifndef PS_INTERNAL_VAN_H_
#define PS_INTERNAL_VAN_H_

#include "ps/internal/message.h"

namespace ps {

class Postoffice;

/// This process as a node.
class Van {
 public:
  const Node &my_node() const { return node_; }
  bool IsReady() const { return ready_; }

 private:
  friend class Postoffice;
  Node node_;
  bool ready_ = false;
};

}  // namespace ps
#endif  // PS_INTERNAL_VAN_H_
