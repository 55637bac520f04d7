// Messages of a number and a string between any nodes, each answered by its receiver's handler.
#ifndef PS_SIMPLE_APP_H_
#define PS_SIMPLE_APP_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

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
  /// Which of the requests that came here it is. Timestamps of a process that was restarted begin again.
  uint64_t request = 0;
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

  /// Sends to a node or to all of a group, and returns the request's timestamp. It ends when all have answered, or when one
  /// has not within ten minutes. While thousands of requests are unanswered, it waits, unless a handler calls it.
  virtual int Request(int head, const std::string &body, int receiver) {
    const int timestamp = obj_->NewRequest(receiver);
    detail::Envelope envelope;
    envelope.customer_id = obj_->customer_id();
    envelope.timestamp = timestamp;
    std::string bytes(reinterpret_cast<const char *>(&envelope), sizeof(envelope));
    bytes += body;
    auto sent = std::unique_ptr<Sent>(new Sent());
    sent->tasks = obj_->tasks();
    sent->take = [this, timestamp](const Answered &answer) { TakeAnswer(timestamp, answer); };
    const auto words = detail::WordsOf(receiver);
    const auto messages = Postoffice::Get()->messages(obj_->customer_id());
    // A handler does not wait: it may be what others wait for.
    GradwireCode code = GRADWIRE_CODE_OK;
    if (!obj_->IsOwnThread()) code = gradwire_messages_wait_for_room(messages.get(), detail::kRequestMs);
    if (code == GRADWIRE_CODE_OK) {
      code = gradwire_messages_send(messages.get(), words.first, words.second, App(), head, bytes.data(), bytes.size(),
                                    detail::kRequestMs, &SimpleApp::OnAnswer, sent.get());
    }
    if (code == GRADWIRE_CODE_OK) {
      // The last answer's callback owns it.
      sent.release();
    } else {
      obj_->Fail(timestamp, gradwire_last_error());
    }
    return timestamp;
  }

  /// Waits until all answers are here. Throws where one cannot come.
  virtual void Wait(int timestamp) { obj_->WaitRequest(timestamp); }

  /// Answers a request, once.
  virtual void Response(const SimpleData &request, const std::string &body = "") {
    std::shared_ptr<GradwireMessage> message;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // The oldest was dropped, where too many wait: its asker has been told.
      if (request.request > 0 && request.request <= dropped_) return;
      const auto found = pending_.find(request.request);
      CHECK(found != pending_.end()) << "request " << request.timestamp << " of node " << request.sender
                                     << " has already been answered, or is unknown";
      message = found->second;
      pending_.erase(found);
    }
    detail::Must(gradwire_message_reply(message.get(), request.head, body.data(), body.size()), "answering");
  }

  virtual void set_request_handle(const Handle &handle) {
    CHECK(handle) << "an empty request handle";
    std::lock_guard<std::mutex> lock(mutex_);
    request_handle_ = handle;
    has_handle_ = true;
    handle_came_.notify_all();
  }

  virtual void set_response_handle(const Handle &handle) {
    CHECK(handle) << "an empty response handle";
    std::lock_guard<std::mutex> lock(mutex_);
    response_handle_ = handle;
  }

  virtual Customer *get_customer() { return obj_; }

 protected:
  SimpleApp() = default;

  /// Begins to receive messages.
  void Open(int app_id, int customer_id) {
    obj_ = new Customer(app_id, customer_id, [](const Message &) {});
    detail::Mailroom::Get()->Add(obj_, [this](const std::shared_ptr<GradwireMessage> &message) { TakeRequest(message); });
  }

  void Close() {
    if (!obj_) return;
    detail::Mailroom::Get()->Remove(obj_);
    delete obj_;
    obj_ = nullptr;
  }

  Customer *obj_ = nullptr;

 private:
  /// Requests that are answered later, or never; beyond so many the oldest are let go of.
  static const size_t kPendingMax = 1024;

  /// One receiver's answer, or its error.
  struct Answered {
    int sender = 0;
    int head = 0;
    std::string body;
    std::string error;
  };

  /// A request until all of its answers are here.
  struct Sent {
    std::shared_ptr<detail::Tasks> tasks;
    std::function<void(const Answered &answer)> take;
    uint32_t had = 0;
  };

  uint32_t App() const { return static_cast<uint32_t>(obj_->app_id()); }

  /// On a thread of the library: the answer is passed on, and nothing else is done there.
  static void OnAnswer(void *context, const GradwireAnswer *given) {
    Sent *sent = static_cast<Sent *>(context);
    Answered answer;
    answer.sender = detail::NodeOf(given->from_group, given->from_rank);
    answer.head = given->head;
    answer.body.assign(static_cast<const char *>(given->body), given->body_bytes);
    if (given->code != GRADWIRE_CODE_OK) answer.error = gradwire_last_error();
    const auto take = sent->take;
    sent->tasks->Add([take, answer] { take(answer); });
    if (++sent->had >= given->of) delete sent;
  }

  /// The rest is on the customer's thread.
  void TakeAnswer(int timestamp, const Answered &answer) {
    if (!answer.error.empty()) return obj_->Fail(timestamp, answer.error);
    SimpleData received;
    received.head = answer.head;
    received.body = answer.body;
    received.sender = answer.sender;
    received.timestamp = timestamp;
    received.customer_id = obj_->customer_id();
    // The handle may delete this app: nothing of it is used afterwards.
    const auto ledger = obj_->ledger();
    Handle handle;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      handle = response_handle_;
    }
    std::string reason;
    if (!detail::Ran([&] { handle(received, this); }, &reason)) return ledger->Fail(timestamp, reason);
    ledger->Add(timestamp, 1);
  }

  void TakeRequest(const std::shared_ptr<GradwireMessage> &message) {
    uint64_t bytes = 0;
    const char *body = static_cast<const char *>(gradwire_message_body(message.get(), &bytes));
    detail::Envelope envelope;
    std::memcpy(&envelope, body, sizeof(envelope));
    uint32_t group = 0, rank = 0;
    detail::Must(gradwire_message_from(message.get(), &group, &rank), "a message");
    SimpleData received;
    received.head = gradwire_message_head(message.get());
    received.body.assign(body + sizeof(envelope), bytes - sizeof(envelope));
    received.sender = detail::NodeOf(group, rank);
    received.timestamp = envelope.timestamp;
    received.customer_id = envelope.customer_id;
    Handle handle;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      // A program sets its handle a moment after it made the app: what comes in between waits for it.
      handle_came_.wait_until(lock, opened_ + std::chrono::seconds(1), [this] { return has_handle_; });
      handle = request_handle_;
      if (pending_.size() >= kPendingMax) {
        dropped_ = pending_.begin()->first;
        pending_.erase(pending_.begin());
      }
      received.request = ++requests_;
      pending_[received.request] = message;
    }
    try {
      handle(received, this);
    } catch (...) {
      // Its asker gets the error instead of an answer.
      std::lock_guard<std::mutex> lock(mutex_);
      pending_.erase(received.request);
      throw;
    }
  }

  std::mutex mutex_;
  std::condition_variable handle_came_;
  bool has_handle_ = false;
  const std::chrono::steady_clock::time_point opened_ = std::chrono::steady_clock::now();
  uint64_t requests_ = 0;
  /// The newest that was dropped without an answer.
  uint64_t dropped_ = 0;
  /// By their number, so that the first is the oldest.
  std::map<uint64_t, std::shared_ptr<GradwireMessage>> pending_;
  /// Without a handle of the program's, requests are answered with nothing.
  Handle request_handle_ = [](const SimpleData &received, SimpleApp *app) { app->Response(received); };
  Handle response_handle_ = [](const SimpleData &, SimpleApp *) {};
};

}  // namespace ps
#endif  // PS_SIMPLE_APP_H_
