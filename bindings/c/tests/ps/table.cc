// Values in a table of the servers' own, by one line or one variable, beside the same requests to the handler that has them otherwise.
#include <cstdlib>

#include "check.h"
#include "sums.h"

using namespace ps;

/// The numbers that a worker sees: pushes of several sizes, each followed by a pull.
static std::vector<float> Numbers(KVWorker<float> *kv, size_t width) {
  std::vector<float> all;
  const std::vector<Key> keys = {1, 5, Key(1) << 62, kMaxKey / 2 + 5};
  std::vector<float> values(keys.size() * width), got;
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(round) + static_cast<float>(i);
    std::vector<int> lens;
    const int pushed = kv->Push(keys, values);
    // The handler says no lengths.
    kv->Wait(kv->Pull(keys, &got, width > 1 ? &lens : nullptr));
    kv->Wait(pushed);
    CHECK(width == 1 || lens == std::vector<int>(keys.size(), static_cast<int>(width)));
    all.insert(all.end(), got.begin(), got.end());
    std::vector<float> both(values.size());
    kv->Wait(kv->PushPull(keys, values, &both));
    all.insert(all.end(), both.begin(), both.end());
  }
  return all;
}

static void Program() {
  const bool by_variable = std::getenv("PS_GRADWIRE_TABLE") != nullptr;
  Start(0);
  if (IsServer()) {
    for (int app : {0, 1}) {
      auto *server = new KVServer<float>(app);
      server->set_request_handle(KVServerDefaultHandle<float>());
      RegisterExitCallback([server] { delete server; });
    }
  }
  if (IsWorker()) {
    KVWorker<float> handler(0, 0), table(1, 1), wide(2, 2), last(3, 3);
    if (!by_variable) {
      table.KeepInTable(Kept::kSum);
      wide.KeepInTable(Kept::kSum);
      last.KeepInTable(Kept::kAssign);
    }
    const std::vector<float> sums = Numbers(&handler, 1);
    CHECK(Numbers(&table, 1) == sums) << "the numbers of the handler, to the bit";
    // No handler has more than one value for a key.
    const std::vector<float> rows = Numbers(&wide, 3);
    CHECK_EQ(rows.size(), 3 * sums.size());
    for (size_t at = 0; at < sums.size(); at += 4) CHECK_EQ(rows[3 * at], sums[at]) << "the first value of the first key";
    CHECK_EQ(rows[1], 1.0f);
    // A key that nobody pushed, into sized memory, and what does not fit.
    SArray<float> nothing(3, 7.0f);
    wide.Wait(wide.ZPull(SArray<Key>({Key(77)}), &nothing));
    CHECK(nothing[0] == 0 && nothing[2] == 0);
    Refused("each key has 3 of them", [&] { wide.Wait(wide.Push({1, 2}, {1.0f, 2.0f})); });
    Refused("pass no lengths", [&] { wide.Push({1}, {1.0f, 2.0f, 3.0f}, {3}); });
    Refused("from the first request on", [&] { wide.KeepInTable(Kept::kSum); });
    // A pull brings what was pushed before it, and not what is pushed after it.
    for (int round = 0; round < 20; ++round) {
      std::vector<float> before, after;
      std::vector<int> stamps;
      stamps.push_back(wide.Push({11}, {1.0f, 1.0f, 1.0f}));
      stamps.push_back(wide.Pull({11}, &before));
      stamps.push_back(wide.Push({11}, {1.0f, 1.0f, 1.0f}));
      stamps.push_back(wide.Pull({11}, &after));
      for (const int stamp : stamps) wide.Wait(stamp);
      CHECK(before[2] == 2.0f * round + 1 && after[2] == 2.0f * round + 2) << before[2] << " and " << after[2];
    }
    int called = 0;
    wide.Wait(wide.ZPush(SArray<Key>({Key(9)}), SArray<float>({1.0f, 2.0f, 3.0f}), {}, 0, [&] { ++called; }));
    CHECK_EQ(called, 1);
    if (!by_variable) {
      std::vector<float> got;
      last.Wait(last.Push({3}, {5.0f}));
      last.Wait(last.Push({3}, {6.0f}));
      last.Wait(last.Pull({3}, &got));
      CHECK_EQ(got[0], 6.0f);
      // The last push stays, however many wait for a pull.
      for (int round = 0; round < 50; ++round) {
        std::vector<float> before;
        std::vector<int> stamps = {last.Pull({3}, &before)};
        for (int push = 0; push < 4; ++push) stamps.push_back(last.Push({3}, {4.0f * round + push}));
        for (const int stamp : stamps) last.Wait(stamp);
        last.Wait(last.Pull({3}, &got));
        CHECK_EQ(got[0], 4.0f * round + 3);
      }
      KVWorker<double> doubles(4, 4);
      doubles.KeepInTable(Kept::kSum);
      Refused("a table keeps floats", [&] { doubles.Push({1}, {1.0}); });
    }
  }
  Finalize(0, true);
}

int main() { return Run(Program); }
