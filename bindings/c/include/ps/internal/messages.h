// Messages between any two nodes, sorted to the customers they are for.
#ifndef PS_INTERNAL_MESSAGES_H_
#define PS_INTERNAL_MESSAGES_H_

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ps/internal/customer.h"
#include "ps/internal/postoffice.h"

namespace ps {
namespace detail {

/// What goes before a request's body.
struct Envelope {
  int32_t customer_id;
  int32_t timestamp;
};
static_assert(sizeof(Envelope) == 8, "an envelope has no padding");

/// How long a request's receivers have to answer it, in milliseconds.
static const uint64_t kRequestMs = 600 * 1000;

/// The library's words for a node or group.
inline std::pair<uint32_t, uint32_t> WordsOf(int node) {
  if (node < 8) return std::make_pair(static_cast<uint32_t>(node), GRADWIRE_EVERYONE);
  const uint32_t group = node % 2 ? GRADWIRE_GROUP_WORKERS : GRADWIRE_GROUP_SERVERS;
  return std::make_pair(group, static_cast<uint32_t>(Postoffice::IDtoRank(node)));
}

/// Customers that take requests, by app and by the member of the cluster that they belong to. Requests for an app that is not
/// there yet wait in the library.
class Mailroom {
 public:
  using Taker = std::function<void(const std::shared_ptr<GradwireMessage> &message)>;

  static Mailroom *Get() {
    static Mailroom mailroom;
    return &mailroom;
  }

  void Add(Customer *customer, Taker taker) {
    const auto messages = Postoffice::Get()->messages(customer->customer_id());
    const Place place(messages.get(), customer->app_id());
    bool is_first = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Route &route = routes_[place];
      route.messages = messages;
      is_first = route.desks.empty();
      Desk &desk = route.desks[customer->customer_id()];
      desk.taker = std::make_shared<Taker>(std::move(taker));
      desk.tasks = customer->tasks();
    }
    if (!is_first) return;
    const auto app = static_cast<uint32_t>(place.second);
    Must(gradwire_messages_register(messages.get(), app, &Mailroom::OnMessage, Context(place)), "taking messages");
  }

  void Remove(Customer *customer) {
    std::shared_ptr<GradwireMessages> last;
    int app = customer->app_id();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto route = routes_.begin(); route != routes_.end(); ++route) {
        if (route->first.second != app || !route->second.desks.erase(customer->customer_id())) continue;
        if (!route->second.desks.empty()) return;
        last = route->second.messages;
        routes_.erase(route);
        break;
      }
    }
    // Without the lock: it waits for a handler that may want it.
    if (last) gradwire_messages_unregister(last.get(), static_cast<uint32_t>(app));
  }

 private:
  using Place = std::pair<const GradwireMessages *, int>;
  struct Desk {
    std::shared_ptr<Taker> taker;
    std::shared_ptr<Tasks> tasks;
  };
  struct Route {
    std::shared_ptr<GradwireMessages> messages;
    std::map<int, Desk> desks;
  };

  /// What the library calls back with; kept for as long as the process, once for each place.
  void *Context(const Place &place) {
    std::lock_guard<std::mutex> lock(mutex_);
    return const_cast<Place *>(&contexts_.emplace(place, place).first->second);
  }

  /// On a thread of the library.
  static void OnMessage(void *context, GradwireMessage *message) {
    const std::shared_ptr<GradwireMessage> owned(message, Free());
    Get()->Sort(*static_cast<const Place *>(context), owned);
  }

  void Sort(const Place &place, const std::shared_ptr<GradwireMessage> &message) {
    uint64_t bytes = 0;
    const void *body = gradwire_message_body(message.get(), &bytes);
    Envelope envelope;
    if (bytes < sizeof(envelope)) return;
    std::memcpy(&envelope, body, sizeof(envelope));
    std::lock_guard<std::mutex> lock(mutex_);
    const auto route = routes_.find(place);
    if (route == routes_.end() || route->second.desks.empty()) return;
    auto &desks = route->second.desks;
    auto desk = desks.find(envelope.customer_id);
    if (desk == desks.end()) desk = desks.begin();
    const auto taker = desk->second.taker;
    desk->second.tasks->Add([taker, message] { (*taker)(message); });
  }

  std::mutex mutex_;
  std::map<Place, Route> routes_;
  std::map<Place, Place> contexts_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_MESSAGES_H_
