// The states of handlers as bytes: what is saved is loaded, and everything else is refused and changes nothing. A handler with a
// state serves as one without.
#include "check.h"

using namespace ps;

using Sums = KVServerDefaultHandle<float>;

/// Neither a part of it nor one with more bytes is a state.
static void OnlyWholeOnesLoad(const std::string &saved, const std::function<void(const std::string &)> &load) {
  for (size_t count = 0; count < saved.size(); ++count) {
    Refused("this is no saved state", [&] { load(saved.substr(0, count)); });
  }
  load(saved);
}

static void DefaultHandles() {
  Sums sums, loaded;
  sums.store[1] = 2.5f;
  sums.store[kMaxKey] = -1;
  sums.store[7] = 0;
  const auto load = [&loaded](const std::string &bytes) { loaded.Load(bytes.data(), bytes.size()); };
  OnlyWholeOnesLoad(sums.Save(), load);
  CHECK(loaded.store == sums.store);
  // What is refused changes nothing.
  Refused("1 bytes follow its end", [&] { load(sums.Save() + "x"); });
  detail::StateWriter twice;
  twice.Number(2);
  for (int time = 0; time < 2; ++time) {
    twice.Value<Key>(5);
    twice.Value(1.0f);
  }
  Refused("it has key 5 twice", [&] { load(twice.Take()); });
  // A number of values that no memory has.
  Refused("this is no saved state", [&] { load(std::string(64, '\xff')); });
  CHECK(loaded.store == sums.store);
  load(Sums().Save());
  CHECK(loaded.store.empty());
}

static SArray<Key> Keys(size_t count, Key first) {
  SArray<Key> keys;
  for (size_t at = 0; at < count; ++at) keys.push_back(first + at);
  return keys;
}

static void KeyArrays() {
  detail::KeptKeys kept, loaded;
  const auto saved = [](const detail::KeptKeys &keys) {
    detail::StateWriter to;
    keys.Save(&to);
    return to.Take();
  };
  // One array more than are kept: the first one is not known any more.
  for (uint64_t number = 1; number <= detail::kKeptKeyArrays + 1; ++number) kept.Keep(9, 0, number, Keys(3, number));
  kept.Keep(11, -1, 1, Keys(2, 50));
  OnlyWholeOnesLoad(saved(kept), [&loaded](const std::string &bytes) {
    detail::StateReader from(bytes.data(), bytes.size());
    detail::KeptKeys all = detail::KeptKeys::Load(&from);
    from.End();
    loaded = all;
  });
  const auto is_known = [&loaded](int sender, int customer, uint64_t number, const SArray<Key> &keys) {
    const SArray<Key> found = loaded.Find(sender, customer, number);
    CHECK(found.size() == keys.size() && std::equal(found.begin(), found.end(), keys.begin())) << found;
  };
  for (uint64_t number = 2; number <= detail::kKeptKeyArrays + 1; ++number) is_known(9, 0, number, Keys(3, number));
  is_known(11, -1, 1, Keys(2, 50));
  Refused("which has failed", [&] { loaded.Find(9, 0, 1); });
  // The order is the same, too: the next array drops the same one.
  loaded.Keep(9, 0, 99, Keys(3, 99));
  Refused("which has failed", [&] { loaded.Find(9, 0, 2); });
  is_known(9, 0, 3, Keys(3, 3));

  // Both sides of each bound.
  const auto arrays = [](uint64_t count, uint64_t keys) {
    detail::StateWriter to;
    to.Number(1);
    to.Value<int32_t>(9);
    to.Value<int32_t>(0);
    to.Number(count);
    const SArray<Key> array(keys);
    for (uint64_t number = 1; number <= count; ++number) {
      to.Number(number);
      to.Array(array);
    }
    return to.Take();
  };
  const auto load = [](const std::string &bytes) {
    detail::StateReader from(bytes.data(), bytes.size());
    detail::KeptKeys::Load(&from);
  };
  const uint64_t longest = detail::kKeyArrayMaxBytes / sizeof(Key);
  load(arrays(detail::kKeptKeyArrays, 1));
  Refused("at most 16 is possible", [&] { load(arrays(detail::kKeptKeyArrays + 1, 1)); });
  load(arrays(1, longest));
  Refused("at most " + std::to_string(longest), [&] { load(arrays(1, longest + 1)); });
  Refused("this is no saved state", [&] { load(std::string(64, '\xff')); });
}

/// What set_state_handles refuses. The server has no requests yet.
static void Handles(KVServer<float> *server) {
  const auto save = [] { return std::string(); };
  const auto load = [](const char *, size_t) {};
  Refused("an empty save handle", [&] { server->set_state_handles(nullptr, load); });
  Refused("an empty load handle", [&] { server->set_state_handles(save, nullptr); });
  Refused("an empty request handle", [&] { server->set_request_handle_with_state(std::shared_ptr<Sums>()); });
  server->set_request_handle_with_state(std::make_shared<Sums>());
  Refused("before set_request_handle", [&] { server->set_state_handles(save, load); });
}

static void Program() {
  DefaultHandles();
  KeyArrays();
  Start(0);
  CHECK(!Postoffice::Get()->is_recovery());
  if (IsServer()) {
    auto *server = new KVServer<float>(0);
    Handles(server);
    RegisterExitCallback([server] { delete server; });
  }
  if (IsWorker()) {
    KVWorker<float> kv(0, 0);
    std::vector<float> out;
    for (int round = 1; round <= 3; ++round) kv.Wait(kv.PushPull({1, 5}, {1, 2}, &out));
    CHECK(out == std::vector<float>({3, 6}));
  }
  Finalize(0, true);
}

int main() { return Run(Program); }
