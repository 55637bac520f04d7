// Messages of a number and a string between any nodes, each answered by its receiver's handler.
#ifndef PS_SIMPLE_APP_H_
#define PS_SIMPLE_APP_H_

#include <functional>
#include <memory>
#include <string>

#include "ps/internal/messages.h"
#include "ps/internal/postoffice.h"

namespace ps {

/// A request or a response as handlers see it.
struct SimpleData {
  int head = 0;
  std::string body;
  /// Node id of who sent it.
  int sender = 0;
  int timestamp = 0;
  /// Of who made the request.
  int customer_id = 0;
};

/// Sends requests, waits for their answers, and answers those of others. Handlers run on the customer's thread.
class SimpleApp {
 public:
  using Handle = std::function<void(const SimpleData &received, SimpleApp *app)>;

  explicit SimpleApp(int app_id, int customer_id) : SimpleApp() { Open(app_id, customer_id); }
  explicit SimpleApp(int app_id) : SimpleApp(app_id, app_id) {}
  virtual ~SimpleApp() { Close(); }
  SimpleApp(const SimpleApp &) = delete;
  SimpleApp &operator=(const SimpleApp &) = delete;

  /// Sends to a node or to all of a group, and returns the request's timestamp. It ends when all have answered.
  virtual int Request(int head, const std::string &body, int receiver) {
    const int timestamp = obj_->NewRequest(receiver);
    detail::Envelope envelope = Envelop(true, head, timestamp, obj_->customer_id());
    try {
      for (const int node : Postoffice::Get()->GetNodeIDs(receiver)) {
        detail::Post(obj_->customer_id(), node, envelope, body);
      }
    } catch (const std::exception &error) {
      obj_->Fail(timestamp, error.what());
    }
    return timestamp;
  }

  /// Waits until all answers are here. Throws where one cannot come.
  virtual void Wait(int timestamp) { obj_->WaitRequest(timestamp); }

  /// Answers a request.
  virtual void Response(const SimpleData &request, const std::string &body = "") {
    const detail::Envelope envelope = Envelop(false, request.head, request.timestamp, request.customer_id);
    detail::Post(obj_->customer_id(), request.sender, envelope, body);
  }

  virtual void set_request_handle(const Handle &handle) {
    CHECK(handle) << "an empty request handle";
    std::lock_guard<std::recursive_mutex> lock(obj_->handling());
    request_handle_ = handle;
  }

  virtual void set_response_handle(const Handle &handle) {
    CHECK(handle) << "an empty response handle";
    std::lock_guard<std::recursive_mutex> lock(obj_->handling());
    response_handle_ = handle;
  }

  virtual Customer *get_customer() { return obj_; }

 protected:
  SimpleApp() = default;

  /// Begins to receive messages.
  void Open(int app_id, int customer_id) {
    obj_ = new Customer(app_id, customer_id, [](const Message &) {});
    detail::Mailroom::Get()->Add(obj_, [this](const detail::Envelope &envelope, int sender, const std::string &body) {
      Take(envelope, sender, body);
    });
  }

  void Close() {
    if (!obj_) return;
    detail::Mailroom::Get()->Remove(obj_);
    delete obj_;
    obj_ = nullptr;
  }

  Customer *obj_ = nullptr;

 private:
  detail::Envelope Envelop(bool request, int head, int timestamp, int customer_id) const {
    detail::Envelope envelope;
    envelope.app_id = obj_->app_id();
    envelope.customer_id = customer_id;
    envelope.timestamp = timestamp;
    envelope.head = head;
    envelope.request = request ? 1 : 0;
    return envelope;
  }

  /// On the customer's thread.
  void Take(const detail::Envelope &envelope, int sender, const std::string &body) {
    SimpleData received;
    received.head = envelope.head;
    received.body = body;
    received.sender = sender;
    received.timestamp = envelope.timestamp;
    received.customer_id = envelope.customer_id;
    if (envelope.request) {
      request_handle_(received, this);
    } else {
      response_handle_(received, this);
      obj_->AddResponse(envelope.timestamp);
    }
  }

  /// Without a handle of the program's, requests are answered with nothing.
  Handle request_handle_ = [](const SimpleData &received, SimpleApp *app) { app->Response(received); };
  Handle response_handle_ = [](const SimpleData &, SimpleApp *) {};
};

}  // namespace ps
#endif  // PS_SIMPLE_APP_H_
