// Tensors of very different sizes, all under way at once, in a small pool: a request needs the memory of its own answer, whatever
// another answer had.
#include <vector>

#include "check.h"
#include "sums.h"

using namespace ps;

static void Train() {
  KVWorker<float> kv(0, 0);
  // The first one is 24 MiB: more than a fifth of the pool.
  std::vector<size_t> sizes = {6 << 20};
  for (size_t i = 1; i < 33; ++i) sizes.push_back(i % 4 ? 4096 * i : i);
  std::vector<SArray<Key>> keys;
  std::vector<SArray<float>> gradients, weights, unsized(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    keys.push_back({static_cast<Key>(i)});
    gradients.emplace_back(sizes[i], static_cast<float>(i + 1));
    weights.emplace_back(sizes[i]);
  }
  for (int round = 1; round <= 3; ++round) {
    std::vector<int> stamps;
    for (size_t i = 0; i < sizes.size(); ++i) stamps.push_back(kv.ZPush(keys[i], gradients[i]));
    for (size_t i = 0; i < sizes.size(); ++i) stamps.push_back(kv.ZPull(keys[i], &weights[i]));
    // Nothing says how much comes.
    for (size_t i = 0; i < sizes.size(); ++i) {
      unsized[i] = SArray<float>();
      stamps.push_back(kv.ZPull(keys[i], &unsized[i]));
    }
    for (const int stamp : stamps) kv.Wait(stamp);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const float want = static_cast<float>(round * static_cast<int>(i + 1));
      for (const auto *pulled : {&weights[i], &unsized[i]}) {
        CHECK_EQ(pulled->size(), sizes[i]);
        CHECK(pulled->front() == want && pulled->back() == want) << "key " << i << ", round " << round;
      }
    }
  }
}

int main() {
  return Run([] {
    Start(0);
    if (IsServer()) {
      auto *server = new KVServer<float>(0);
      server->set_request_handle(Sums());
      RegisterExitCallback([server] { delete server; });
    }
    if (IsWorker()) Train();
    Finalize(0, true);
  });
}
