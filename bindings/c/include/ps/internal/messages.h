// Messages between any two nodes: sent through the library, sorted to the customers they are for.
#ifndef PS_INTERNAL_MESSAGES_H_
#define PS_INTERNAL_MESSAGES_H_

#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ps/internal/customer.h"

namespace ps {
namespace detail {

/// What goes before a message's body. All of it is little-endian, as every node is.
struct Envelope {
  int32_t app_id;
  int32_t customer_id;
  int32_t timestamp;
  int32_t head;
  int32_t request;
};
static_assert(sizeof(Envelope) == 20, "an envelope has no padding");

/// Sends through this process's member; a worker with several through that of the customer. Throws where it cannot.
inline void Post(int, int, const Envelope &, const std::string &) { throw dmlc::Error("no messages yet"); }

/// Customers that take messages. What comes for one that is not there yet waits for it, within a bound.
class Mailroom {
 public:
  using Taker = std::function<void(const Envelope &envelope, int sender, const std::string &body)>;

  static Mailroom *Get() {
    static Mailroom mailroom;
    return &mailroom;
  }

  void Add(Customer *customer, Taker taker) {
    std::lock_guard<std::mutex> lock(mutex_);
    Desk &desk = desks_[std::make_pair(customer->app_id(), customer->customer_id())];
    desk.taker = std::make_shared<Taker>(std::move(taker));
    desk.tasks = customer->tasks();
    std::deque<Mail> waiting;
    waiting.swap(waiting_);
    for (Mail &mail : waiting) Sort(std::move(mail));
  }

  void Remove(Customer *customer) {
    std::lock_guard<std::mutex> lock(mutex_);
    desks_.erase(std::make_pair(customer->app_id(), customer->customer_id()));
  }

  /// A message came, on a thread of the library.
  void Deliver(int sender, const void *bytes, uint64_t count) {
    Mail mail;
    if (count < sizeof(Envelope)) return;
    std::memcpy(&mail.envelope, bytes, sizeof(Envelope));
    mail.sender = sender;
    mail.body.assign(static_cast<const char *>(bytes) + sizeof(Envelope), count - sizeof(Envelope));
    std::lock_guard<std::mutex> lock(mutex_);
    Sort(std::move(mail));
  }

 private:
  static const size_t kWaitingMax = 4096;
  struct Desk {
    std::shared_ptr<Taker> taker;
    std::shared_ptr<Tasks> tasks;
  };
  struct Mail {
    Envelope envelope;
    int sender = 0;
    std::string body;
  };

  /// To the customer named, else for a request to any of the app.
  void Sort(Mail mail) {
    const int app = mail.envelope.app_id;
    auto found = desks_.find(std::make_pair(app, static_cast<int>(mail.envelope.customer_id)));
    if (found == desks_.end() && mail.envelope.request) {
      found = desks_.lower_bound(std::make_pair(app, std::numeric_limits<int>::min()));
      if (found != desks_.end() && found->first.first != app) found = desks_.end();
    }
    if (found != desks_.end()) {
      const auto taker = found->second.taker;
      found->second.tasks->Add([taker, mail] { (*taker)(mail.envelope, mail.sender, mail.body); });
    } else if (!mail.envelope.request) {
      // Who asked is gone.
    } else if (waiting_.size() < kWaitingMax) {
      waiting_.push_back(std::move(mail));
    } else {
      LOG(WARNING) << "a message for app " << app << " was dropped: " << kWaitingMax << " wait for customers already";
    }
  }

  std::mutex mutex_;
  std::map<std::pair<int, int>, Desk> desks_;
  std::deque<Mail> waiting_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_MESSAGES_H_
