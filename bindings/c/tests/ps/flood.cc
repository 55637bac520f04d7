// A thousand requests of all sizes in flight at once, in the smallest pool that has room for the largest of them: who makes requests
// waits for memory, and nothing fails. Callbacks that make requests wait on the thread that answers come to, and answers come all
// the same. VGG-16's tensors, each divided by 16, likewise.
#include <mutex>
#include <numeric>
#include <vector>

#include "check.h"
#include "sums.h"

using namespace ps;

/// A tensor that is pushed, and what comes back by each way.
struct Tensor {
  Tensor(Key key, size_t size) : keys({key}), gradient(size, static_cast<float>(key + 1)), sized(size) {}
  void Check(int pushes) const {
    for (const SArray<float> *pulled : {&sized, &unsized, &both}) {
      CHECK_EQ(pulled->size(), gradient.size()) << "key " << keys[0];
      for (const float *at : {pulled->begin(), pulled->end() - 1}) {
        CHECK_EQ(*at, static_cast<float>(pushes) * gradient.front()) << "key " << keys[0];
      }
    }
    CHECK(plain.size() == gradient.size() && plain.back() == both.back()) << "key " << keys[0];
  }
  SArray<Key> keys;
  SArray<float> gradient, sized, unsized, both;
  std::vector<float> plain;
};

/// All of them at once, `rounds` times: pushes, then pulls of each kind.
static void Train(KVWorker<float> *kv, Key first, const std::vector<size_t> &sizes, int rounds) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < sizes.size(); ++i) tensors.emplace_back(first + i, sizes[i]);
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> stamps;
    for (Tensor &one : tensors) {
      const std::vector<float> values(one.gradient.begin(), one.gradient.end());
      stamps.push_back(kv->Push({one.keys[0]}, values));
      one.both = SArray<float>();
      stamps.push_back(kv->ZPushPull(one.keys, one.gradient, &one.both));
    }
    for (Tensor &one : tensors) {
      one.unsized = SArray<float>();
      one.plain.clear();
      stamps.push_back(kv->ZPull(one.keys, &one.unsized));
      stamps.push_back(kv->ZPull(one.keys, &one.sized));
      stamps.push_back(kv->Pull({one.keys[0]}, &one.plain));
    }
    for (const int stamp : stamps) kv->Wait(stamp);
    for (const Tensor &one : tensors) one.Check(2 * (round + 1));
  }
}

/// Answers that nobody has taken hold the pool, and the thread that takes them makes a request.
static void InCallbacks(KVWorker<float> *kv) {
  const Key key = 5000;
  const SArray<Key> keys = {key};
  const SArray<float> gradient(1 << 20, 1.0f);
  kv->Wait(kv->ZPush(keys, gradient));
  std::mutex mutex;
  std::vector<int> stamps;
  std::vector<SArray<float>> pulled(40);
  for (SArray<float> &one : pulled) {
    const int stamp = kv->ZPull(keys, &one, nullptr, 0, [&] {
      const int pushed = kv->ZPush(keys, gradient);
      std::lock_guard<std::mutex> lock(mutex);
      stamps.push_back(pushed);
    });
    std::lock_guard<std::mutex> lock(mutex);
    stamps.push_back(stamp);
  }
  size_t waited = 0;
  while (waited < 2 * pulled.size()) {
    int stamp;
    {
      std::lock_guard<std::mutex> lock(mutex);
      stamp = stamps[waited++];
    }
    kv->Wait(stamp);
  }
  SArray<float> sum;
  kv->Wait(kv->ZPull(keys, &sum));
  CHECK_EQ(sum[7], 41.0f);
}

int main() {
  return Run([] {
    Start(0);
    if (IsServer()) {
      auto *server = new KVServer<float>(0);
      server->set_request_handle(Sums());
      RegisterExitCallback([server] { delete server; });
    }
    if (IsWorker()) {
      KVWorker<float> kv(0, 0);
      // 200 tensors, so that 1,000 requests are in flight: 4 bytes to 2 MiB, and two of 4 MiB.
      std::vector<size_t> sizes(200);
      for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = i % 100 == 50 ? 1 << 20 : i % 10 == 3 ? i * 2048 : 1 + i * i;
      Train(&kv, 0, sizes, 2);
      InCallbacks(&kv);
      std::vector<size_t> vgg;
      size_t from = 3;
      for (const size_t to : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
        vgg.insert(vgg.end(), {9 * from * to / 16, to});
        from = to;
      }
      vgg.insert(vgg.end(), {7 * 7 * 512 * 4096 / 64, 4096, 4096 * 4096 / 16, 4096, 4096 * 1000 / 16, 1000});
      Train(&kv, 1000, vgg, 2);
    }
    Finalize(0, true);
  });
}
