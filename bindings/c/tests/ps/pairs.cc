// Keys and values through servers: the default handle and one of the program's own, lengths, commands, callbacks, slicers,
// order, and what is refused.
#include <atomic>
#include <numeric>

#include "check.h"

using namespace ps;

/// Keeps arrays of any length, counts pushes by command, and fails where it is told to.
struct Store {
  void operator()(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
    CHECK(meta.cmd != 13) << "the test wants it";
    if (meta.cmd == 14) return;
    size_t at = 0;
    const size_t each = data.keys.empty() ? 0 : data.vals.size() / data.keys.size();
    KVPairs<float> answer;
    answer.keys = data.keys;
    for (size_t i = 0; i < data.keys.size(); ++i) {
      std::vector<float> &kept = values[data.keys[static_cast<int>(i)]];
      if (meta.push) {
        const size_t length = data.lens.empty() ? each : static_cast<size_t>(data.lens[static_cast<int>(i)]);
        kept.assign(data.vals.data() + at, data.vals.data() + at + length);
        at += length;
      }
      if (meta.cmd == 3) kept.assign(1, static_cast<float>(meta.sender));
      if (!meta.pull) continue;
      for (const float value : kept) answer.vals.push_back(value);
      answer.lens.push_back(static_cast<int>(kept.size()));
    }
    server->Response(meta, meta.pull ? answer : KVPairs<float>());
  }
  std::map<Key, std::vector<float>> values;
};

static void Serve() {
  auto *sums = new KVServer<float>(0);
  sums->set_request_handle(KVServerDefaultHandle<float>());
  auto *store = new KVServer<float>(1);
  store->set_request_handle(Store());
  RegisterExitCallback([sums, store] {
    delete sums;
    delete store;
  });
}

/// Sums of all workers, keys at all servers.
static void Sums() {
  KVWorker<float> kv(0, 0);
  const int count = 1000;
  std::vector<Key> keys(count);
  std::vector<float> values(count), out;
  for (int i = 0; i < count; ++i) {
    keys[i] = kMaxKey / count * i;
    values[i] = static_cast<float>(i);
  }
  kv.Wait(kv.Push(keys, values));
  Postoffice::Get()->Barrier(0, kWorkerGroup);
  kv.Wait(kv.Pull(keys, &out));
  const float workers = static_cast<float>(NumWorkers());
  for (int i = 0; i < count; ++i) CHECK_EQ(out[i], values[i] * workers);
  Postoffice::Get()->Barrier(kWorkerGroup);
  kv.Wait(kv.Pull({3, 5}, &(out = {})));
  CHECK(out.size() == 2 && out[0] == 0 && out[1] == 0) << "keys that nobody pushed are 0";
  // A pull that nobody waited for before a push sees what was before it.
  const Key own = 10 + static_cast<Key>(MyRank());
  std::vector<std::vector<float>> seen(100);
  std::vector<int> stamps;
  for (auto &one : seen) {
    stamps.push_back(kv.Push({own}, {1.0f}));
    stamps.push_back(kv.Pull({own}, &one));
  }
  for (const int stamp : stamps) kv.Wait(stamp);
  for (size_t i = 0; i < seen.size(); ++i) CHECK_EQ(seen[i][0], static_cast<float>(i + 1)) << "out of order";
}

/// Arrays of different lengths, without copies; several apps in one process.
static void Lengths() {
  KVWorker<float> kv(1, 1);
  const Key base = 1000 * static_cast<Key>(MyRank() + 1);
  SArray<Key> keys = {base + 1, base + 2, kMaxKey / 2 + base, kMaxKey - base};
  SArray<int> lens = {3, 1, 20000, 2};
  SArray<float> values(20006);
  std::iota(values.begin(), values.end(), 0.5f);
  kv.Wait(kv.ZPush(keys, values, lens, 0));
  SArray<float> out;
  SArray<int> out_lens;
  std::atomic<int> called(0);
  const int stamp = kv.ZPull(keys, &out, &out_lens, 0, [&] { ++called; });
  kv.Wait(stamp);
  CHECK_EQ(called.load(), 1);
  CHECK(out.size() == values.size() && std::equal(out.begin(), out.end(), values.begin()));
  CHECK(std::equal(lens.begin(), lens.end(), out_lens.begin()));
  // Twice the values, and what they become in the same request; into memory that is there already.
  for (float &value : values) value *= 2;
  const float *place = out.data();
  kv.Wait(kv.ZPushPull(keys, values, &out, &lens));
  CHECK(out.data() == place && std::equal(out.begin(), out.end(), values.begin()));
  // A command: each value is who asked.
  SArray<float> who;
  kv.Wait(kv.ZPull(keys, &who, nullptr, 3));
  for (const float one : who) CHECK_EQ(static_cast<int>(one), Postoffice::WorkerRankToID(MyRank()));
  // A slicer of the program's: everything to the last server.
  kv.set_slicer([](const KVPairs<float> &send, const std::vector<Range> &ranges, KVWorker<float>::SlicedKVs *sliced) {
    sliced->resize(ranges.size());
    for (auto &slice : *sliced) slice.first = false;
    sliced->back().first = true;
    sliced->back().second = send;
  });
  kv.Wait(kv.ZPush({base + 1}, SArray<float>({5.0f})));
  SArray<float> five;
  kv.Wait(kv.ZPull({base + 1}, &five));
  CHECK(five.size() == 1 && five[0] == 5.0f);
}

static void Mistakes() {
  KVWorker<float> kv(1, 2);
  std::vector<float> out;
  Refused("key 1 at position 2", [&] { kv.Push({1, 2, 1}, {1, 2, 3}); });
  Refused("key 7 at position 1", [&] { kv.Pull({7, 7}, &out); });
  Refused("values do not go round", [&] { kv.Push({1, 2}, {1, 2, 3}); });
  Refused("2 lengths for 1 keys", [&] { kv.Push({1}, {1, 2}, {1, 1}); });
  Refused("more values than there are", [&] { kv.Push({1}, {1, 2}, {3}); });
  Refused("fewer values than there are", [&] { kv.Push({1}, {1, 2}, {1}); });
  Refused("beyond all servers' ranges", [&] { kv.Push({kMaxKey}, {1}); });
  Refused("none of this customer's requests", [&] { kv.Wait(1000); });
  Refused("without an answer", [&] { kv.Wait(kv.Push({1}, {1}, {}, 13)); });
  out.resize(5);
  kv.Wait(kv.Push({1}, {1}));
  Refused("do not fit", [&] { kv.Wait(kv.Pull({1}, &out)); });
  Refused("this customer", [] {
    KVWorker<float> one(5, 5);
    LOG(FATAL) << "this customer is open";
  });
  Refused("has a customer 2 in this process already", [] { KVWorker<float> again(1, 2); });
  KVWorker<double> other(1, 3);
  Refused("without an answer", [&] { other.Wait(other.Push({1}, {1.0}, {1})); });
  // Nothing at all is nothing to do.
  kv.Wait(kv.Push({}, {}));
}

int main() {
  return Run([] {
    Start(0);
    CHECK(Postoffice::Get()->GetServerKeyRanges().size() == static_cast<size_t>(NumServers()));
    if (IsServer()) Serve();
    if (IsWorker()) {
      Sums();
      Lengths();
      Mistakes();
    }
    Finalize(0, true);
  });
}
