// The server's side of key-value pairs.
#ifndef PS_INTERNAL_KV_SERVER_H_
#define PS_INTERNAL_KV_SERVER_H_

#include <algorithm>
#include <deque>

#include "ps/internal/key_arrays.h"
#include "ps/kv_app.h"

namespace ps {

/// Gives workers' requests to a handler, one at a time, those of one worker in the order in which it made them. The handler
/// answers each with Response, at once or later and from any thread; one that it never answers is an error at the worker.
template <typename Val>
class KVServer : public SimpleApp {
 public:
  using ReqHandle = std::function<void(const KVMeta &meta, const KVPairs<Val> &data, KVServer *server)>;

  explicit KVServer(int app_id, bool = false, int = 0) : SimpleApp() { this->Open(app_id, app_id); }

  virtual ~KVServer() {
    const auto server = Postoffice::Get()->server();
    if (server && serves_) gradwire_server_unregister(server.get(), App());
    this->Close();
  }

  /// Requests come from now on; those made before it was there waited.
  void set_request_handle(const ReqHandle &handle) {
    CHECK(handle) << "an empty request handle";
    {
      std::lock_guard<std::recursive_mutex> lock(this->obj_->handling());
      handle_ = handle;
    }
    if (serves_) return;
    const auto server = Postoffice::Get()->server();
    CHECK(server) << "this process is no started server: call Start first, with DMLC_ROLE=server";
    detail::Must(gradwire_server_register(server.get(), App(), &KVServer::OnRequest, this), "serving requests");
    serves_ = true;
  }

  /// Answers a request, once. Values that are the only thing to be sent are sent from where they lie and must not change
  /// until they have been: use an array of their own for each answer, or one whose values stay.
  void Response(const KVMeta &meta, const KVPairs<Val> &answer = KVPairs<Val>()) {
    Pending pending;
    if (!Take(meta, &pending)) return;
    detail::KVReplyHead head;
    const bool same = answer.keys.size() == pending.keys.size() &&
                      (answer.keys.data() == pending.keys.data() ||
                       std::equal(answer.keys.begin(), answer.keys.end(), pending.keys.begin()));
    const bool sends = !answer.keys.empty();
    head.same_keys = same ? 1 : 0;
    head.key_bytes = sends && !same ? answer.keys.size() * sizeof(Key) : 0;
    head.val_bytes = sends ? answer.vals.size() * sizeof(Val) : 0;
    head.len_bytes = sends ? answer.lens.size() * sizeof(int) : 0;
    GradwirePiece pieces[3];
    uint64_t count = 0;
    if (head.key_bytes) pieces[count++] = detail::Lend(answer.keys, answer.keys.data(), head.key_bytes);
    if (head.val_bytes) pieces[count++] = detail::Lend(answer.vals, answer.vals.data(), head.val_bytes);
    if (head.len_bytes) pieces[count++] = detail::Lend(answer.lens, answer.lens.data(), head.len_bytes);
    detail::Must(gradwire_request_reply(pending.request.get(), &head, sizeof(head), pieces, count), "answering");
  }

 private:
  /// What is kept of a request until it is answered.
  struct Pending {
    uint64_t number = 0;
    std::shared_ptr<GradwireRequest> request;
    SArray<Key> keys;
  };
  /// Requests that were let go of, and are not known any more beyond so many.
  static const size_t kDroppedMax = 1024;

  /// Keeps a request until it is answered, under a number of its own. Of one worker no more are under way than the library lets
  /// it have, so that of more than those the oldest has ended there: nobody waits for its answer.
  uint64_t Keep(int sender, Pending pending) {
    Pending oldest;
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t number = pending.number = ++requests_;
    auto &kept = pending_[sender];
    kept.push_back(std::move(pending));
    if (kept.size() <= GRADWIRE_CALLS_IN_FLIGHT_MAX) return number;
    oldest = std::move(kept.front());
    kept.pop_front();
    dropped_.push_back(oldest.number);
    if (dropped_.size() > kDroppedMax) dropped_.pop_front();
    return number;
  }

  /// Takes a request out, to be answered; false where nobody waits for the answer any more.
  bool Take(const KVMeta &meta, Pending *taken) {
    const uint64_t number = meta.request;
    std::lock_guard<std::mutex> lock(mutex_);
    auto &kept = pending_[meta.sender];
    const auto found = std::find_if(kept.begin(), kept.end(), [&](const Pending &one) { return one.number == number; });
    if (found != kept.end()) {
      *taken = std::move(*found);
      kept.erase(found);
      return true;
    }
    const auto dropped = std::find(dropped_.begin(), dropped_.end(), number);
    CHECK(dropped != dropped_.end()) << "request " << meta.timestamp << " of node " << meta.sender
                                     << " has already been answered, or is unknown";
    dropped_.erase(dropped);
    return false;
  }

  uint32_t App() const { return static_cast<uint32_t>(this->obj_->app_id()); }

  /// On the library's thread for this handler. Nothing may be thrown through it.
  static void OnRequest(void *context, GradwireRequest *request) {
    const std::shared_ptr<GradwireRequest> owned(request, detail::Free());
    std::string reason;
    const auto serve = [&] { static_cast<KVServer *>(context)->Serve(owned); };
    if (!detail::Ran(serve, &reason)) LOG(ERROR) << "a request was not answered: " << reason;
  }

  void Serve(const std::shared_ptr<GradwireRequest> &request) {
    uint64_t head_bytes = 0, body_bytes = 0;
    const void *head_start = gradwire_request_head(request.get(), &head_bytes);
    const char *body = static_cast<const char *>(gradwire_request_body(request.get(), &body_bytes));
    detail::KVRequestHead head;
    CHECK(detail::ReadHead(head_start, head_bytes, &head)) << "it is no request for keys and values";
    CHECK(head.val_type == GetDataType<Val>() && head.val_size == detail::SizeOf<Val>())
        << "its values are of another type; worker and server have to use the same";
    // Added up piece by piece, so that no sum of lengths can go beyond what there is.
    CHECK(head.key_bytes <= body_bytes && head.val_bytes <= body_bytes - head.key_bytes &&
          head.len_bytes == body_bytes - head.key_bytes - head.val_bytes && head.key_bytes % sizeof(Key) == 0 &&
          head.val_bytes % sizeof(Val) == 0 && head.len_bytes % sizeof(int) == 0)
        << "its lengths do not fit";
    KVPairs<Val> data;
    data.keys = detail::PartOf<Key>(request, body, head.key_bytes);
    data.vals = detail::PartOf<Val>(request, body + head.key_bytes, head.val_bytes);
    data.lens = detail::PartOf<int>(request, body + head.key_bytes + head.val_bytes, head.len_bytes);
    KVMeta meta;
    meta.cmd = head.cmd;
    meta.push = (head.flags & detail::kPush) != 0;
    meta.pull = (head.flags & detail::kPull) != 0;
    const int sender = meta.sender = Postoffice::WorkerRankToID(static_cast<int>(gradwire_request_from(request.get())));
    meta.timestamp = head.timestamp;
    meta.customer_id = head.customer_id;
    if (head.keys_number) {
      data.keys = head.key_bytes ? kept_keys_.Keep(sender, head.customer_id, head.keys_number, data.keys)
                                 : kept_keys_.Find(sender, head.customer_id, head.keys_number);
    }
    CHECK(data.lens.empty() || data.lens.size() == data.keys.size()) << "it has another number of lengths than of keys";
    Pending pending;
    pending.request = request;
    pending.keys = data.keys;
    meta.request = Keep(meta.sender, pending);
    std::lock_guard<std::recursive_mutex> lock(this->obj_->handling());
    try {
      handle_(meta, data, this);
    } catch (...) {
      // What the handler failed at, and did not answer before, is not answered: the worker is told.
      std::lock_guard<std::mutex> lock(mutex_);
      auto &kept = pending_[meta.sender];
      const auto is_it = [&](const Pending &one) { return one.number == meta.request; };
      kept.erase(std::remove_if(kept.begin(), kept.end(), is_it), kept.end());
      throw;
    }
  }

  ReqHandle handle_;
  bool serves_ = false;
  std::mutex mutex_;
  uint64_t requests_ = 0;
  /// By sender, in the order in which they came.
  std::map<int, std::deque<Pending>> pending_;
  std::deque<uint64_t> dropped_;
  /// Of the thread that requests come on.
  detail::KeptKeys kept_keys_;
};

/// Keeps one value for each key: pushes are added, pulls of keys that nobody pushed bring 0.
template <typename Val>
struct KVServerDefaultHandle {
  void operator()(const KVMeta &meta, const KVPairs<Val> &data, KVServer<Val> *server) {
    const size_t count = data.keys.size();
    if (meta.push) {
      CHECK_EQ(data.vals.size(), count) << "this handle keeps one value for each key";
    }
    KVPairs<Val> answer;
    if (meta.pull) {
      answer.keys = data.keys;
      answer.vals.resize(count);
    }
    for (size_t at = 0; at < count; ++at) {
      Val &value = store[data.keys.data()[at]];
      if (meta.push) value += data.vals.data()[at];
      if (meta.pull) answer.vals.data()[at] = value;
    }
    server->Response(meta, answer);
  }
  std::unordered_map<Key, Val> store;
};

}  // namespace ps
#endif  // PS_INTERNAL_KV_SERVER_H_
