// The server's side of key-value pairs.
#ifndef PS_INTERNAL_KV_SERVER_H_
#define PS_INTERNAL_KV_SERVER_H_

#include <algorithm>
#include <deque>

#include "ps/internal/key_arrays.h"
#include "ps/internal/state_bytes.h"
#include "ps/kv_app.h"

namespace ps {

/// Gives workers' requests to a handler, one at a time, those of one worker in the order in which it made them. The handler
/// answers each with Response, at once or later and from any thread; one that it never answers is an error at the worker.
template <typename Val>
class KVServer : public SimpleApp {
 public:
  using ReqHandle = std::function<void(const KVMeta &meta, const KVPairs<Val> &data, KVServer *server)>;
  /// Returns the handler's state as bytes.
  using SaveHandle = std::function<std::string()>;
  /// Takes over the state that a SaveHandle returned in an earlier process.
  using LoadHandle = std::function<void(const char *bytes, size_t count)>;

  explicit KVServer(int app_id, bool = false, int = 0) : SimpleApp() { this->Open(app_id, app_id); }

  virtual ~KVServer() {
    const auto server = Postoffice::Get()->server();
    if (server && serves_) gradwire_server_unregister(server.get(), App());
    this->Close();
  }

  /// Makes the state of the request handle outlive this process, if cluster.replicas is at least 1: another server keeps what `save`
  /// returned, and the requests since. If this server fails, the process that takes its place calls `load` with those bytes, gives
  /// its request handle those requests again, and then new ones. So the same requests in the same order must lead to the same state:
  /// the request handle must not depend on clocks, random numbers, or messages of SimpleApp, which are not kept. Each request must be
  /// answered. `save` and `load` run on the thread of the request handle, between requests, while every request has been answered.
  ///
  /// If `save` throws, the earlier state and the requests since are kept. If `load` throws, the request handle gets no requests, and
  /// requests of workers fail.
  ///
  /// Call it before set_request_handle, because requests may come from then on. If it is called later, it throws.
  void set_state_handles(const SaveHandle &save, const LoadHandle &load) {
    CHECK(save) << "an empty save handle";
    CHECK(load) << "an empty load handle";
    CHECK(!serves_) << "requests may have changed the state already: call set_state_handles before set_request_handle";
    save_ = save;
    load_ = load;
  }

  /// Sets a request handle whose state outlives this process. Save and Load are its members: `std::string Save()` and
  /// `void Load(const char *bytes, size_t count)`. As set_state_handles, and then set_request_handle.
  template <typename Handle>
  void set_request_handle_with_state(const std::shared_ptr<Handle> &handle) {
    CHECK(handle) << "an empty request handle";
    set_state_handles([handle] { return handle->Save(); },
                      [handle](const char *bytes, size_t count) { handle->Load(bytes, count); });
    set_request_handle(
        [handle](const KVMeta &meta, const KVPairs<Val> &data, KVServer *server) { (*handle)(meta, data, server); });
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
    const GradwireCode code =
        save_ ? gradwire_server_register_with_state(server.get(), App(), &KVServer::OnRequest, &KVServer::OnSave,
                                                    &KVServer::OnLoad, this)
              : gradwire_server_register(server.get(), App(), &KVServer::OnRequest, this);
    detail::Must(code, "serving requests");
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
  /// Requests that were let go of. Beyond so many they are not known one by one any more.
  static const size_t kDroppedMax = 1024;
  /// The first number of a saved state: "gwkv", and the version of what follows.
  static const uint64_t kStateMark = 0x67776b7600000001;

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
    if (dropped_.size() > kDroppedMax) {
      forgotten_ = std::max(forgotten_, dropped_.front());
      dropped_.pop_front();
    }
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
    // A handler that answers from another thread is given the requests of a journal faster than it answers them: many are dropped then.
    if (dropped == dropped_.end() && number > 0 && number <= forgotten_) return false;
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

  /// As OnRequest. False: the state cannot be saved now.
  static bool OnSave(void *context, GradwireState *state) {
    std::string reason;
    const auto save = [&] { static_cast<KVServer *>(context)->Save(state); };
    if (detail::Ran(save, &reason)) return true;
    LOG(ERROR) << "a handler's state was not saved, so the earlier one and the requests since are kept: " << reason;
    return false;
  }

  /// As OnRequest. False: the state cannot be loaded.
  static bool OnLoad(void *context, const void *bytes, uint64_t count) {
    std::string reason;
    const auto load = [&] {
      static_cast<KVServer *>(context)->Load(static_cast<const char *>(bytes), static_cast<size_t>(count));
    };
    if (detail::Ran(load, &reason)) return true;
    LOG(ERROR) << "a handler's state cannot be loaded, so it gets no requests: " << reason;
    return false;
  }

  /// Before the program's bytes there is what this class keeps across requests: key arrays that later requests name, and the number
  /// of requests, which handlers see in their metadata.
  void Save(GradwireState *state) {
    std::lock_guard<std::recursive_mutex> lock(this->obj_->handling());
    const std::string program = save_();
    detail::StateWriter own;
    own.Number(kStateMark);
    own.Number(GetDataType<Val>());
    own.Number(sizeof(Val));
    own.Number(Requests());
    kept_keys_.Save(&own);
    own.Number(program.size());
    const std::string before = own.Take();
    detail::Must(gradwire_state_write(state, before.data(), before.size()), "saving a state");
    detail::Must(gradwire_state_write(state, program.data(), program.size()), "saving a state");
  }

  void Load(const char *bytes, size_t count) {
    std::lock_guard<std::recursive_mutex> lock(this->obj_->handling());
    detail::StateReader from(bytes, count);
    CHECK(from.Number() == kStateMark) << "these " << count << " bytes are no saved state of a KVServer";
    const uint64_t type = from.Number(), size = from.Number();
    CHECK(type == GetDataType<Val>() && size == sizeof(Val))
        << "the saved state has values of another type; the new process has to use the same";
    const uint64_t requests = from.Number();
    detail::KeptKeys kept_keys = detail::KeptKeys::Load(&from);
    const uint64_t program_bytes = from.Number();
    CHECK(program_bytes == from.left()) << "this is no saved state: it is to end with " << program_bytes
                                        << " bytes of the program, and has " << from.left();
    load_(from.at(), from.left());
    // Nothing throws any more: the state is loaded as a whole, or not at all.
    kept_keys_ = std::move(kept_keys);
    std::lock_guard<std::mutex> counts(mutex_);
    requests_ = requests;
  }

  uint64_t Requests() {
    std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

  void Serve(const std::shared_ptr<GradwireRequest> &request) {
    uint64_t head_bytes = 0;
    const void *head_start = gradwire_request_head(request.get(), &head_bytes);
    detail::KVRequestHead head;
    CHECK(detail::ReadHead(head_start, head_bytes, &head)) << "it is no request for keys and values";
    CHECK(head.val_type == GetDataType<Val>() && head.val_size == detail::SizeOf<Val>())
        << "its values are of another type; worker and server have to use the same";
    CHECK(head.key_bytes % sizeof(Key) == 0 && head.val_bytes % sizeof(Val) == 0 && head.len_bytes % sizeof(int) == 0)
        << "its lengths do not fit";
    KVPairs<Val> data;
    detail::RequestBody body(request);
    data.keys = body.Take<Key>(0, head.key_bytes);
    data.vals = body.TakeValues<Val>(head.key_bytes, head.val_bytes);
    // Each part is there, so the sum of their lengths is no more than the body has.
    data.lens = body.Take<int>(head.key_bytes + head.val_bytes, head.len_bytes);
    CHECK(body.EndsAt(head.key_bytes + head.val_bytes + head.len_bytes)) << "it is longer than its head says";
    body.Done();
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
  /// Empty if the state ends with the process. They do not change once requests may come.
  SaveHandle save_;
  LoadHandle load_;
  bool serves_ = false;
  std::mutex mutex_;
  uint64_t requests_ = 0;
  /// By sender, in the order in which they came.
  std::map<int, std::deque<Pending>> pending_;
  std::deque<uint64_t> dropped_;
  /// The newest of those that are not in `dropped_` any more: an older request may have been answered, or let go of.
  uint64_t forgotten_ = 0;
  /// Of the thread that requests come on.
  detail::KeptKeys kept_keys_;
};

/// Keeps one value for each key: pushes are added, pulls of keys that nobody pushed bring 0. Its values outlive the process as
/// KVServer::set_request_handle_with_state(std::make_shared<KVServerDefaultHandle<Val>>()).
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

  /// The values as bytes.
  std::string Save() const {
    detail::StateWriter to;
    to.Number(store.size());
    for (const auto &pair : store) {
      to.Value(pair.first);
      to.Value(pair.second);
    }
    return to.Take();
  }

  /// Replaces the values by those that Save returned. If it throws, they stay.
  void Load(const char *bytes, size_t count) {
    detail::StateReader from(bytes, count);
    std::unordered_map<Key, Val> loaded;
    for (uint64_t left = from.Number(); left > 0; --left) {
      const Key key = from.Value<Key>();
      const Val value = from.Value<Val>();
      CHECK(loaded.emplace(key, value).second) << "this is no saved state: it has key " << key << " twice";
    }
    from.End();
    store.swap(loaded);
  }

  std::unordered_map<Key, Val> store;
};

}  // namespace ps
#endif  // PS_INTERNAL_KV_SERVER_H_
