// Key arrays that come again are kept by servers: each request has its own keys there, whatever came before it, also after one that
// failed, and where an array is changed in place.
#include "check.h"

using namespace ps;

/// Answers each key with a number that follows from it.
static float Of(Key key) { return static_cast<float>(key % 8191); }

static void Answer(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
  CHECK(meta.cmd != 9) << "it is told to fail";
  KVPairs<float> answer;
  answer.keys = data.keys;
  answer.vals.resize(data.keys.size());
  for (size_t at = 0; at < data.keys.size(); ++at) answer.vals[static_cast<int>(at)] = Of(data.keys.data()[at]);
  server->Response(meta, answer);
}

static std::vector<Key> Array(size_t size, Key step) {
  std::vector<Key> keys;
  for (size_t at = 0; at < size; ++at) keys.push_back(Key(at) * (kMaxKey / size / 2) * 2 + step);
  return keys;
}

static void IsRight(KVWorker<float> *kv, const std::vector<Key> &keys) {
  std::vector<float> got;
  kv->Wait(kv->Pull(keys, &got));
  CHECK_EQ(got.size(), keys.size());
  for (size_t at = 0; at < keys.size(); ++at) CHECK_EQ(got[at], Of(keys[at])) << "key " << keys[at] << " at " << at;
}

static void Program() {
  Start(0);
  if (IsServer()) {
    auto *server = new KVServer<float>(0);
    server->set_request_handle(Answer);
    RegisterExitCallback([server] { delete server; });
  }
  if (IsWorker()) {
    KVWorker<float> kv(0, 0), other(0, 1);
    std::vector<Key> keys = Array(5000, 1);
    for (int round = 0; round < 5; ++round) {
      IsRight(&kv, keys);
      IsRight(&other, keys);
    }
    // Where a mark does not look.
    keys[101] += 1;
    for (int round = 0; round < 3; ++round) IsRight(&kv, keys);
    keys[101] -= 1;
    for (int round = 0; round < 3; ++round) IsRight(&kv, keys);
    // More than are kept, of one length and of several, in turns.
    for (int round = 0; round < 4; ++round) {
      for (Key step = 2; step < 22; ++step) IsRight(&kv, Array(step % 2 ? 5000 : 3000 + step, step));
    }
    // A kept one between those that come once and twice.
    for (int round = 0; round < 3; ++round) {
      const Key first = 100 + 40 * round;
      for (Key step = 0; step < 7; ++step) IsRight(&kv, Array(4000, first + step));
      for (int twice = 0; twice < 2; ++twice) IsRight(&kv, Array(4000, first + 30));
      for (Key step = 0; step < 7; ++step) IsRight(&kv, Array(4000, first + step));
      for (int twice = 0; twice < 2; ++twice) IsRight(&kv, Array(4000, first + 31));
      for (int twice = 0; twice < 3; ++twice) IsRight(&kv, Array(4000, first + 30));
    }
    // Two workers of one member, each with as many as it may name.
    for (int round = 0; round < 4; ++round) {
      for (Key step = 300; step < 308; ++step) {
        IsRight(&kv, Array(4000, step));
        IsRight(&other, Array(4000, step + 10));
      }
    }
    // Many under way at once.
    std::vector<std::vector<float>> got(40);
    std::vector<int> stamps;
    for (size_t at = 0; at < got.size(); ++at) stamps.push_back(kv.Pull(at % 3 ? keys : Array(5000, 7), &got[at]));
    for (const int stamp : stamps) kv.Wait(stamp);
    for (size_t at = 0; at < got.size(); ++at) CHECK_EQ(got[at][101], Of(at % 3 ? keys[101] : Array(5000, 7)[101]));
    // A request that fails: those after it have their keys.
    std::vector<float> none;
    for (int round = 0; round < 2; ++round) {
      Refused("", [&] { kv.Wait(kv.Pull(keys, &none, nullptr, 9)); });
      IsRight(&kv, keys);
      IsRight(&kv, keys);
    }
  }
  Finalize(0, true);
}

int main() { return Run(Program); }
