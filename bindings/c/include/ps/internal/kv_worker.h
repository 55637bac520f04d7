// The worker's side of key-value pairs.
#ifndef PS_INTERNAL_KV_WORKER_H_
#define PS_INTERNAL_KV_WORKER_H_

#include "ps/internal/key_arrays.h"
#include "ps/internal/kv_slice.h"
#include "ps/internal/landings.h"
#include "ps/internal/table.h"
#include "ps/kv_app.h"

namespace ps {

/// Pushes and pulls key-value pairs, each key at the server whose range has it. All calls return at once; Wait or a callback
/// tells when they are done. Thread-safe. Calls to one server are served in the order in which they were made.
template <typename Val>
class KVWorker : public SimpleApp {
 public:
  /// Called on the customer's thread when a request is done; not where it failed, which Wait tells.
  using Callback = std::function<void()>;
  using SlicedKVs = std::vector<std::pair<bool, KVPairs<Val>>>;
  /// Cuts pairs by the servers' ranges: the i-th entry is the i-th server's, and says whether there is anything for it.
  using Slicer =
      std::function<void(const KVPairs<Val> &send, const std::vector<Range> &ranges, SlicedKVs *sliced)>;

  explicit KVWorker(int app_id, int customer_id, int = 0) : SimpleApp() {
    slicer_ = detail::SliceByRange<Val>;
    this->Open(app_id, customer_id);
  }
  explicit KVWorker(int app_id) : KVWorker(app_id, app_id) {}

  virtual ~KVWorker() {
    // From here on no answer is put anywhere, but for those that servers write into long arrays (SArray), which stay until then.
    landings_->Close();
    this->Close();
  }

  /// The vectors are the caller's again when it returns.
  int Push(const std::vector<Key> &keys, const std::vector<Val> &vals, const std::vector<int> &lens = {}, int cmd = 0,
           const Callback &callback = nullptr, int priority = 0) {
    KVPairs<Val> pairs;
    pairs.keys = detail::Look(keys);
    pairs.vals = detail::Look(vals);
    pairs.lens = detail::Look(lens);
    pairs.priority = priority;
    detail::CheckKeys(pairs.keys);
    const auto operation = NewOperation(detail::kPush, cmd, callback);
    operation->borrowed = true;
    return Send(operation, pairs);
  }

  /// `vals` and `lens` are filled when it is done. Empty ones get their size then; others have to have it.
  int Pull(const std::vector<Key> &keys, std::vector<Val> *vals, std::vector<int> *lens = nullptr, int cmd = 0,
           const Callback &callback = nullptr, int priority = 0) {
    return StartPull(SArray<Key>(keys), vals, lens, cmd, callback, priority);
  }

  /// As Push and Pull in one: `outs` gets what the servers have after the push.
  int PushPull(const std::vector<Key> &keys, const std::vector<Val> &vals, std::vector<Val> *outs,
               std::vector<int> *lens = nullptr, int cmd = 0, const Callback &callback = nullptr, int priority = 0) {
    CHECK_NOTNULL(outs);
    CHECK(outs->empty() || outs->size() == vals.size())
        << outs->size() << " values are to hold what " << vals.size() << " become";
    const SArray<int> sent = lens ? SArray<int>(*lens) : SArray<int>();
    return StartPushPull(SArray<Key>(keys), SArray<Val>(vals), sent, outs, lens, cmd, callback, priority);
  }

  /// Waits until a request is done. Throws where it failed, with the reason.
  void Wait(int timestamp) override { this->obj_->WaitRequest(timestamp); }

  /// As Push, with arrays that must not change until it is done.
  int ZPush(const SArray<Key> &keys, const SArray<Val> &vals, const SArray<int> &lens = {}, int cmd = 0,
            const Callback &callback = nullptr, int priority = 0) {
    KVPairs<Val> pairs;
    pairs.keys = keys;
    pairs.vals = vals;
    pairs.lens = lens;
    pairs.priority = priority;
    detail::CheckKeys(keys);
    const auto operation = NewOperation(detail::kPush, cmd, callback);
    return Send(operation, pairs);
  }

  int ZPull(const SArray<Key> &keys, SArray<Val> *vals, SArray<int> *lens = nullptr, int cmd = 0,
            const Callback &callback = nullptr, int priority = 0) {
    return StartPull(keys, vals, lens, cmd, callback, priority);
  }

  int ZPushPull(const SArray<Key> &keys, const SArray<Val> &vals, SArray<Val> *outs, SArray<int> *lens = nullptr,
                int cmd = 0, const Callback &callback = nullptr, int priority = 0) {
    const SArray<int> sent = lens ? *lens : SArray<int>();
    return StartPushPull(keys, vals, sent, outs, lens, cmd, callback, priority);
  }

  /// From the first request on, a table of the servers' own has the values, with replicas and in checkpoints, and no handler of the program
  /// is asked. Each key has as many values as in the first request, and pulls of keys that nobody pushed bring 0. All workers
  /// must call it with the same value. The variable PS_GRADWIRE_TABLE (sum, assign) sets it for all workers of a process.
  void KeepInTable(Kept kept) {
    std::lock_guard<std::mutex> lock(table_mutex_);
    CHECK(!table_) << "values are kept in a table from the first request on, or not at all: call KeepInTable before it";
    kept_ = kept;
  }

  void set_slicer(const Slicer &slicer) {
    CHECK(slicer) << "an empty slicer";
    slicer_ = slicer;
  }

 private:
  /// One server's answer. A long one holds memory of the library's pool only until it is copied.
  struct Answer {
    bool has_come = false;
    std::shared_ptr<GradwireReply> reply;
    SArray<Key> keys;
    SArray<Val> vals;
    SArray<int> lens;
    /// Where its values go, and how many there have to be for that.
    SArray<Val> place;
  };

  /// A request until it is done. Answers come on several threads; the lock orders them.
  struct Operation {
    std::mutex mutex;
    int timestamp = 0;
    uint16_t flags = 0;
    int cmd = 0;
    size_t servers = 0;
    SArray<Key> keys;
    std::vector<Answer> answers;
    size_t answered = 0;
    /// Calls that have not ended. Until then servers may read what is pushed, and write where values are to be: a request that has failed
    /// at one server ends with the last call, or its caller would write arrays that another server has not read yet.
    size_t open = 0;
    bool failed = false;
    std::string reason;
    /// Keys and values are the caller's again when the request has been made.
    bool borrowed = false;
    /// What the caller has for the values; empty where it takes what comes.
    SArray<Val> room;
    bool wants_lens = false;
    std::function<void(Operation *)> fill;
    Callback callback;
    std::shared_ptr<detail::Ledger> ledger;
    std::shared_ptr<detail::Tasks> tasks;
    std::shared_ptr<detail::Landings> landings;
    std::shared_ptr<detail::SentKeys> sent_keys;
  };

  /// How a call ended.
  struct Landing {
    std::shared_ptr<Operation> operation;
    size_t server = 0;
    /// Where its values are to be.
    const void *place = nullptr;
    std::shared_ptr<GradwireReply> reply;
    std::string error;
  };

  std::shared_ptr<Operation> NewOperation(int flags, int cmd, const Callback &callback) {
    auto operation = std::make_shared<Operation>();
    operation->flags = static_cast<uint16_t>(flags);
    operation->cmd = cmd;
    operation->callback = callback;
    operation->ledger = this->obj_->ledger();
    operation->tasks = this->obj_->tasks();
    operation->landings = landings_;
    operation->sent_keys = sent_keys_;
    return operation;
  }

  template <typename Vals, typename Lens>
  int StartPull(const SArray<Key> &keys, Vals *vals, Lens *lens, int cmd, const Callback &callback, int priority) {
    CHECK_NOTNULL(vals);
    detail::CheckKeys(keys);
    KVPairs<Val> pairs;
    pairs.keys = keys;
    pairs.priority = priority;
    const auto operation = NewOperation(detail::kPull, cmd, callback);
    operation->room = RoomOf(*vals);
    operation->wants_lens = lens != nullptr;
    operation->fill = [vals, lens](Operation *done) { Fill(done, vals, lens); };
    return Send(operation, pairs);
  }

  template <typename Vals, typename Lens>
  int StartPushPull(const SArray<Key> &keys, const SArray<Val> &vals, const SArray<int> &sent, Vals *outs, Lens *lens,
                    int cmd, const Callback &callback, int priority) {
    CHECK_NOTNULL(outs);
    detail::CheckKeys(keys);
    KVPairs<Val> pairs;
    pairs.keys = keys;
    pairs.vals = vals;
    pairs.lens = sent;
    pairs.priority = priority;
    const auto operation = NewOperation(detail::kPush | detail::kPull, cmd, callback);
    operation->room = RoomOf(*outs);
    operation->wants_lens = lens != nullptr;
    operation->fill = [outs, lens](Operation *done) { Fill(done, outs, lens); };
    return Send(operation, pairs);
  }

  static SArray<Val> RoomOf(const SArray<Val> &array) { return array; }
  static SArray<Val> RoomOf(const std::vector<Val> &vector) { return detail::Look(vector); }

  /// Null where a handler has the values.
  std::shared_ptr<detail::Table> TableOf() {
    std::lock_guard<std::mutex> lock(table_mutex_);
    if (kept_ == Kept::kByHandler || table_) return table_;
    CHECK((std::is_same<Val, float>::value)) << "a table keeps floats, and this worker has values of another type: leave them to a handler";
    const auto client = Postoffice::Get()->client(this->obj_->customer_id());
    return table_ = std::make_shared<detail::Table>(client, this->obj_->app_id(), kept_);
  }

  /// A request to the table. Its push begins at once, so that many may be under way, unless a pull that was made before has not ended: that
  /// would bring what is pushed now. The thread for long answers waits and pulls.
  int SendToTable(const std::shared_ptr<detail::Table> &table, const std::shared_ptr<Operation> &operation,
                  const KVPairs<Val> &pairs) {
    CHECK(pairs.lens.empty()) << "in a table each key has as many values as the others: pass no lengths";
    operation->timestamp = this->obj_->NewRequest(kServerGroup);
    operation->servers = Postoffice::Get()->GetServerKeyRanges().size();
    if (!operation->borrowed) operation->keys = pairs.keys;
    const bool pulls = (operation->flags & detail::kPull) != 0;
    KVPairs<Val> later;
    detail::Table::Push push;
    std::string reason;
    const std::lock_guard<std::mutex> lock(table->order());
    const bool waits = table->IsHeld();
    if (waits) {
      later = pairs;
      if (operation->borrowed) KeepOne(&later.keys), KeepOne(&later.vals);
    } else if (!detail::Ran([&] { push = PushToTable(table.get(), *operation, pairs); }, &reason)) {
      Failed(operation, reason);
      return operation->timestamp;
    }
    // What waits for a pull holds up those after it, too.
    const bool holds = pulls || waits;
    if (holds) table->Hold();
    landings_->Add([table, operation, push, later, pulls, holds] {
      std::string reason;
      const auto work = [&] {
        detail::Table::Wait(push ? push : PushToTable(table.get(), *operation, later));
        if (pulls) PullFromTable(table.get(), operation.get());
      };
      const bool went_well = detail::Ran(work, &reason);
      if (holds) table->LetGo();
      if (!went_well) return Failed(operation, reason);
      if (!operation->callback) return Finish(operation);
      operation->tasks->Add([operation] { Finish(operation); });
    });
    return operation->timestamp;
  }

  /// Null where nothing is pushed.
  static detail::Table::Push PushToTable(detail::Table *table, const Operation &operation, const KVPairs<Val> &pairs) {
    if (!(operation.flags & detail::kPush) || pairs.keys.empty()) return nullptr;
    return table->Begin(pairs.keys, reinterpret_cast<const float *>(pairs.vals.data()), pairs.vals.size());
  }

  static void PullFromTable(detail::Table *table, Operation *operation) {
    Answer answer;
    answer.has_come = true;
    answer.keys = operation->keys;
    const size_t keys = answer.keys.size(), values = keys ? table->Values(keys, operation->room.size()) : 0;
    answer.vals = operation->room;
    if (answer.vals.size() != values) answer.vals = SArray<Val>(values);
    if (keys) table->Pull(answer.keys, reinterpret_cast<float *>(answer.vals.data()), values);
    answer.lens = SArray<int>(keys, keys ? static_cast<int>(values / keys) : 0);
    operation->answers.assign(1, answer);
    operation->fill(operation);
    operation->answers.clear();
  }

  int Send(const std::shared_ptr<Operation> &operation, const KVPairs<Val> &pairs) {
    if (const auto table = TableOf()) return SendToTable(table, operation, pairs);
    SlicedKVs sliced;
    const auto &ranges = Postoffice::Get()->GetServerKeyRanges();
    slicer_(pairs, ranges, &sliced);
    CHECK(sliced.size() == ranges.size()) << "a slicer gave " << sliced.size() << " parts for " << ranges.size() << " servers";
    // A push needs no keys later, and borrowed ones are not there any more.
    if (!operation->borrowed) operation->keys = pairs.keys;
    const size_t values = pairs.vals.size() + operation->room.size();
    operation->timestamp = this->obj_->NewRequest(kServerGroup, values * sizeof(Val) <= kLongBytes);
    operation->servers = sliced.size();
    operation->answers.resize(sliced.size());
    size_t skipped = 0;
    for (const auto &slice : sliced) skipped += slice.first ? 0 : 1;
    operation->answered = skipped;
    if (skipped == sliced.size()) {
      operation->tasks->Add([operation] { Finish(operation); });
      return operation->timestamp;
    }
    for (size_t server = 0; server < sliced.size(); ++server) {
      if (sliced[server].first) Call(operation, server, sliced[server].second, pairs.priority);
    }
    return operation->timestamp;
  }

  /// Memory of a request: kept until the library does not need it, or copied now.
  template <typename V>
  static GradwirePiece Piece(const Operation &operation, const SArray<V> &array) {
    const uint64_t bytes = array.size() * sizeof(V);
    if (!operation.borrowed) return detail::Lend(array, array.data(), bytes);
    GradwirePiece piece = GradwirePiece();
    piece.data = array.data();
    piece.bytes = bytes;
    return piece;
  }

  /// Where one server's values go: its share of what the caller has, which is known where all keys have as many values, and where
  /// values come back in the places of those that are pushed.
  static SArray<Val> PlaceOf(const Operation &operation, const KVPairs<Val> &slice) {
    const size_t keys = operation.keys.size(), values = operation.room.size();
    const ptrdiff_t first = slice.keys.data() - operation.keys.data();
    const bool is_part = keys && first >= 0 && first + slice.keys.size() <= keys;
    if (!is_part || values == 0 || values % keys || !slice.lens.empty()) {
      return slice.keys.size() == keys ? operation.room : SArray<Val>();
    }
    const size_t width = values / keys;
    return operation.room.segment(first * width, (first + slice.keys.size()) * width);
  }

  /// Bytes that one server's answer is expected to have, with its keys and lengths. An answer that is longer is announced first.
  static uint64_t ExpectedBytes(const Operation &operation, const KVPairs<Val> &slice, const SArray<Val> &place) {
    const uint64_t values = slice.vals.empty() ? place.size() : slice.vals.size();
    if (!(operation.flags & detail::kPull) || values == 0) return 0;
    return values * sizeof(Val) + slice.keys.size() * (sizeof(Key) + sizeof(int));
  }

  void Call(const std::shared_ptr<Operation> &operation, size_t server, const KVPairs<Val> &slice, int priority) {
    const SArray<Val> place = PlaceOf(*operation, slice);
    const auto client = Postoffice::Get()->client(this->obj_->customer_id());
    const detail::SentKeys::Way way = sent_keys_->Look(server, slice.keys);
    {
      std::lock_guard<std::mutex> lock(operation->mutex);
      // Another server has failed it already: then there are no answers any more.
      if (operation->failed) return;
      ++operation->open;
      Answer &answer = operation->answers[server];
      answer.place = place;
      if (!operation->borrowed) answer.keys = slice.keys;
    }
    detail::KVRequestHead head;
    head.cmd = operation->cmd;
    head.customer_id = this->obj_->customer_id();
    head.timestamp = operation->timestamp;
    head.flags = operation->flags;
    head.val_type = static_cast<uint8_t>(GetDataType<Val>());
    head.val_size = detail::SizeOf<Val>();
    head.keys_number = way.number;
    head.key_bytes = way.is_kept ? 0 : slice.keys.size() * sizeof(Key);
    head.val_bytes = slice.vals.size() * sizeof(Val);
    head.len_bytes = slice.lens.size() * sizeof(int);
    GradwirePiece pieces[3];
    uint64_t count = 0;
    if (head.key_bytes) pieces[count++] = Piece(*operation, slice.keys);
    if (head.val_bytes) pieces[count++] = Piece(*operation, slice.vals);
    if (head.len_bytes) pieces[count++] = Piece(*operation, slice.lens);
    GradwireCall call = GradwireCall();
    call.app = static_cast<uint32_t>(this->obj_->app_id());
    call.server = static_cast<uint32_t>(server);
    call.head = &head;
    call.head_bytes = sizeof(head);
    call.pieces = pieces;
    call.piece_count = count;
    call.priority = priority;
    call.reply_bytes = ExpectedBytes(*operation, slice, place);
    auto landing = std::unique_ptr<Landing>(new Landing());
    landing->operation = operation;
    landing->server = server;
    landing->place = place.data();
    // The library writes there if that is memory of its own. An answer that has lengths is longer.
    if (call.reply_bytes && !place.empty() && !operation->wants_lens) {
      call.reply_into = detail::Lend(place, place.data(), place.size() * sizeof(Val));
    }
    if (gradwire_call_then(client.get(), &call, &KVWorker::OnReply, landing.get()) != GRADWIRE_CODE_OK) {
      const std::string reason = gradwire_last_error();
      {
        std::lock_guard<std::mutex> lock(operation->mutex);
        --operation->open;
      }
      return Failed(operation, reason);
    }
    // The callback owns it.
    landing.release();
    if (way.number && !way.is_kept) sent_keys_->Sent(server, way.number);
  }

  /// On a thread of the library, which short answers do not hold up. Long ones are copied by a thread of their own: it takes them out
  /// of the library's pool even where the customer's thread waits in a callback for memory of that pool.
  static void OnReply(void *context, GradwireCode code, GradwireReply *reply) {
    const std::shared_ptr<Landing> landing(static_cast<Landing *>(context));
    landing->reply = std::shared_ptr<GradwireReply>(reply, detail::Free());
    if (code != GRADWIRE_CODE_OK) landing->error = gradwire_last_error();
    uint64_t bytes = 0;
    const void *body = reply ? gradwire_reply_body(reply, &bytes) : nullptr;
    const auto landings = landing->operation->landings;
    if (bytes > kLongBytes && body != landing->place) {
      landings->Add([landing] { Landed(landing.get()); });
    } else {
      landings->Run([&] { Landed(landing.get()); });
    }
  }

  /// A server's answer is here, or its error.
  static void Landed(Landing *landing) {
    const std::shared_ptr<Operation> operation = landing->operation;
    std::string reason = landing->error;
    bool is_last = false, has_failed = false;
    {
      const auto take = [&] { is_last = Take(operation.get(), landing->server, std::move(landing->reply)); };
      std::lock_guard<std::mutex> lock(operation->mutex);
      --operation->open;
      if (reason.empty() && !operation->failed) detail::Ran(take, &reason);
      has_failed = operation->failed || !reason.empty();
    }
    if (has_failed) return Failed(operation, reason);
    if (!is_last) return operation->ledger->Add(operation->timestamp, 1);
    // Callbacks run on the customer's thread.
    if (!operation->callback) return Finish(operation);
    operation->tasks->Add([operation] { Finish(operation); });
  }

  /// Takes an answer; true if it was the last one. All values are then where the caller wants them.
  static bool Take(Operation *operation, size_t server, std::shared_ptr<GradwireReply> reply) {
    uint64_t head_bytes = 0, body_bytes = 0;
    const void *head_start = gradwire_reply_head(reply.get(), &head_bytes);
    const char *body = static_cast<const char *>(gradwire_reply_body(reply.get(), &body_bytes));
    detail::KVReplyHead head;
    CHECK(detail::ReadHead(head_start, head_bytes, &head) && head.key_bytes <= body_bytes &&
          head.val_bytes <= body_bytes - head.key_bytes &&
          head.len_bytes == body_bytes - head.key_bytes - head.val_bytes)
        << "server " << server << " answered something that is no keys and values";
    Answer &answer = operation->answers[server];
    answer.has_come = true;
    if (!head.same_keys) answer.keys = detail::PartOf<Key>(reply, body, head.key_bytes);
    answer.vals = detail::PartOf<Val>(reply, body + head.key_bytes, head.val_bytes);
    answer.lens = detail::PartOf<int>(reply, body + head.key_bytes + head.val_bytes, head.len_bytes);
    reply.reset();
    // Its values are not where they are to be, but what has landed there has them.
    if (static_cast<const void *>(body) == answer.place.data() && body_bytes != head.val_bytes) KeepAll(&answer);
    if (++operation->answered == operation->servers) {
      if (operation->fill) operation->fill(operation);
      operation->answers.clear();
      return true;
    }
    // Others are still to come, which may need the memory that this one has.
    if (body_bytes > kLongBytes) Keep(&answer);
    return false;
  }

  /// Copies an answer out of the library's memory.
  static void Keep(Answer *answer) {
    const SArray<Val> place = answer->place;
    if (answer->vals.size() == place.size()) {
      Copy(answer->vals, place.data());
      answer->vals = place;
    }
    KeepAll(answer);
  }

  static void KeepAll(Answer *answer) {
    if (answer->vals.data() != answer->place.data()) KeepOne(&answer->vals);
    KeepOne(&answer->keys);
    KeepOne(&answer->lens);
  }

  template <typename V>
  static void KeepOne(SArray<V> *array) {
    SArray<V> copy;
    copy.CopyFrom(*array);
    *array = copy;
  }

  template <typename V>
  static void Copy(const SArray<V> &from, V *to) {
    if (!from.empty() && from.data() != to) std::memcpy(static_cast<void *>(to), from.data(), from.size() * sizeof(V));
  }

  /// The first reason counts. The caller hears of it when no call is under way any more.
  static void Failed(const std::shared_ptr<Operation> &operation, const std::string &reason) {
    // It may have been the one that brought keys.
    operation->sent_keys->Forget();
    {
      std::lock_guard<std::mutex> lock(operation->mutex);
      if (!operation->failed) operation->reason = reason;
      operation->failed = true;
      operation->answers.clear();
      if (operation->open) return;
    }
    operation->ledger->Fail(operation->timestamp, operation->reason);
  }

  /// All values are where the caller wants them. The callback may delete this worker: nothing of it is used.
  static void Finish(const std::shared_ptr<Operation> &operation) {
    const Callback callback = std::move(operation->callback);
    const auto call = [&] {
      if (callback) callback();
    };
    std::string reason;
    if (!detail::Ran(call, &reason)) return Failed(operation, reason);
    operation->ledger->Add(operation->timestamp, static_cast<int>(operation->servers));
  }

  /// Puts what the servers answered where the caller wants it, in the order of the keys.
  template <typename Vals, typename Lens>
  static void Fill(Operation *operation, Vals *vals, Lens *lens) {
    std::vector<Answer *> answers;
    size_t keys = 0, values = 0;
    for (Answer &answer : operation->answers) {
      if (!answer.has_come) continue;
      if (!answer.keys.empty()) {
        const Range asked = FindRange(operation->keys, answer.keys.front(), static_cast<Key>(answer.keys.back() + 1));
        CHECK_EQ(asked.size(), answer.keys.size()) << "a server answered other keys than those asked for";
      }
      CHECK(!lens || answer.lens.size() == answer.keys.size()) << "a server answered without the values' lengths";
      keys += answer.keys.size();
      values += answer.vals.size();
      answers.push_back(&answer);
    }
    CHECK_EQ(keys, operation->keys.size()) << "servers answered for another number of keys than those asked for";
    std::sort(answers.begin(), answers.end(), [](const Answer *a, const Answer *b) {
      return !a->keys.empty() && !b->keys.empty() && a->keys.front() < b->keys.front();
    });
    if (vals->empty()) vals->resize(values);
    CHECK_EQ(vals->size(), values) << "the values pulled do not fit what is to hold them";
    if (lens && lens->empty()) lens->resize(keys);
    CHECK(!lens || lens->size() == keys) << "the lengths pulled do not fit what is to hold them";
    // Where keys have different numbers of values, an answer may have been kept in a place that is another server's.
    const Val *at = vals->data();
    for (Answer *answer : answers) {
      if (answer->vals.data() == answer->place.data() && answer->vals.data() != at) KeepOne(&answer->vals);
      at += answer->vals.size();
    }
    Val *to = vals->data();
    int *to_length = lens ? lens->data() : nullptr;
    for (const Answer *answer : answers) {
      Copy(answer->vals, to);
      to += answer->vals.size();
      if (!to_length) continue;
      Copy(answer->lens, to_length);
      to_length += answer->lens.size();
    }
  }

  /// Longer bodies are not the library's own: they lie in its pool.
  static const uint64_t kLongBytes = 4096;

  Slicer slicer_;
  std::mutex table_mutex_;
  Kept kept_ = detail::KeptByVariable();
  std::shared_ptr<detail::Table> table_;
  const std::shared_ptr<detail::SentKeys> sent_keys_ = std::make_shared<detail::SentKeys>();
  const std::shared_ptr<detail::Landings> landings_ = std::make_shared<detail::Landings>();
};

}  // namespace ps
#endif  // PS_INTERNAL_KV_WORKER_H_
