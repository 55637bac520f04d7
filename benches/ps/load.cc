// A load program over ps-lite's interface, with a handler of its own. It compiles against our headers and against ps-lite's, so that the
// two can be compared; run.sh runs it.
//
//   load WORK MEMORY SECONDS
//   WORK    vgg16, inception, mib (1 MiB, one request in flight), keys (100,000 keys in a message), latency (4 floats)
//   MEMORY  arrays: what SArray allocates; vectors: std::vector, not copied by the program
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "ps/ps.h"

using namespace ps;
using Clock = std::chrono::steady_clock;

/// Keeps what was pushed last for each first key, and answers with it where it lies.
struct Keep {
  void operator()(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
    SArray<float> &kept = values[data.keys[0]];
    if (meta.push) {
      if (kept.size() != data.vals.size()) kept.resize(data.vals.size(), 0);
      float *to = kept.data();
      const float *from = data.vals.data();
      for (size_t i = 0; i < kept.size(); ++i) to[i] += from[i];
    }
    KVPairs<float> answer;
    if (meta.pull) {
      answer.keys = data.keys;
      answer.vals = kept;
    }
    server->Response(meta, answer);
  }
  std::unordered_map<Key, SArray<float>> values;
};

/// Elements of each message, and how many keys each has.
struct Work {
  std::vector<size_t> sizes;
  size_t keys = 1;
};

static void Branch(std::vector<size_t> *sizes, size_t from, const std::vector<std::pair<size_t, size_t>> &convolutions) {
  for (const auto &one : convolutions) {
    sizes->push_back(one.first * from * one.second);
    sizes->push_back(one.second);
    from = one.second;
  }
}

static Work WorkOf(const std::string &name) {
  Work work;
  auto &s = work.sizes;
  if (name == "mib") s = {262144};
  if (name == "latency") s = {4};
  if (name == "keys") s = {100000}, work.keys = 100000;
  if (name == "vgg16") {
    Branch(&s, 3, {{9, 64}, {9, 64}, {9, 128}, {9, 128}, {9, 256}, {9, 256}, {9, 256}, {9, 512}, {9, 512}, {9, 512}, {9, 512},
                   {9, 512}, {9, 512}, {49, 4096}, {1, 4096}, {1, 10}});
  }
  if (name == "inception") {
    Branch(&s, 3, {{9, 32}, {9, 32}, {9, 64}, {1, 80}, {9, 192}});
    for (const auto &one : std::vector<std::pair<size_t, size_t>>{{192, 32}, {256, 64}, {288, 64}}) {
      Branch(&s, one.first, {{1, 64}});
      Branch(&s, one.first, {{1, 48}, {25, 64}});
      Branch(&s, one.first, {{1, 64}, {9, 96}, {9, 96}});
      Branch(&s, one.first, {{1, one.second}});
    }
    Branch(&s, 288, {{9, 384}});
    Branch(&s, 288, {{1, 64}, {9, 96}, {9, 96}});
    for (const size_t inner : {128, 160, 160, 192}) {
      Branch(&s, 768, {{1, 192}});
      Branch(&s, 768, {{1, inner}, {7, inner}, {7, 192}});
      Branch(&s, 768, {{1, inner}, {7, inner}, {7, inner}, {7, inner}, {7, 192}});
      Branch(&s, 768, {{1, 192}});
    }
    Branch(&s, 768, {{1, 128}, {25, 768}, {1, 10}});
    Branch(&s, 768, {{1, 192}, {9, 320}});
    Branch(&s, 768, {{1, 192}, {7, 192}, {7, 192}, {9, 192}});
    for (const size_t from : {1280, 2048}) {
      Branch(&s, from, {{1, 320}});
      Branch(&s, from, {{1, 384}, {3, 384}});
      Branch(&s, 384, {{3, 384}});
      Branch(&s, from, {{1, 448}, {9, 384}, {3, 384}});
      Branch(&s, 384, {{3, 384}});
      Branch(&s, from, {{1, 192}});
    }
    Branch(&s, 2048, {{1, 10}});
  }
  if (s.empty()) std::fprintf(stderr, "no work is called %s\n", name.c_str()), std::exit(2);
  return work;
}

struct Exchange {
  SArray<Key> keys;
  SArray<float> gradient, weights;
};

static double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// One push and one pull of each message, all of them in flight together.
static void Round(KVWorker<float> *kv, std::vector<Exchange> *messages) {
  std::vector<int> stamps;
  for (Exchange &one : *messages) stamps.push_back(kv->ZPush(one.keys, one.gradient));
  for (Exchange &one : *messages) stamps.push_back(kv->ZPull(one.keys, &one.weights));
  for (const int stamp : stamps) kv->Wait(stamp);
}

static void Train(const std::string &name, bool arrays, double seconds) {
  KVWorker<float> kv(0, 0);
  const Work work = WorkOf(name);
  std::vector<Exchange> messages;
  size_t bytes = 0;
  for (size_t i = 0; i < work.sizes.size(); ++i) {
    Exchange one;
    one.keys.resize(work.keys);
    for (size_t key = 0; key < work.keys; ++key) one.keys.data()[key] = i * 1000000 + key;
    const size_t size = work.sizes[i];
    if (arrays) {
      one.gradient.resize(size, 1.0f);
      one.weights.resize(size, 0.0f);
    } else {
      one.gradient = SArray<float>(std::make_shared<std::vector<float>>(size, 1.0f));
      one.weights = SArray<float>(std::make_shared<std::vector<float>>(size, 0.0f));
    }
    bytes += 2 * size * sizeof(float);
    messages.push_back(one);
  }
  // ps-lite may serve a pull before the push that was made before it: the values are there before the first pull.
  for (Exchange &one : messages) kv.Wait(kv.ZPush(one.keys, one.gradient));
  Round(&kv, &messages);
  std::vector<double> times;
  const auto start = Clock::now();
  while (Seconds(Clock::now() - start) < seconds || times.size() < 3) {
    const auto began = Clock::now();
    Round(&kv, &messages);
    times.push_back(Seconds(Clock::now() - began));
  }
  for (Exchange &one : messages) kv.Wait(kv.ZPull(one.keys, &one.weights));
  const float rounds = static_cast<float>(times.size() + 2);
  for (const Exchange &one : messages) {
    if (one.weights.front() != rounds || one.weights.back() != rounds) {
      std::fprintf(stderr, "wrong: %f, and not %f\n", one.weights.back(), rounds);
      std::exit(1);
    }
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  std::printf("%s %s: %.2f GB/s, p50 %.1f us, %zu rounds\n", name.c_str(), arrays ? "arrays" : "vectors", bytes / median / 1e9,
              median * 1e6, times.size());
}

int main(int argc, char **argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: load WORK arrays|vectors SECONDS\n"), 2;
  Start(0);
  if (IsServer()) {
    auto *server = new KVServer<float>(0);
    server->set_request_handle(Keep());
    RegisterExitCallback([server] { delete server; });
  }
  if (IsWorker()) Train(argv[1], std::strcmp(argv[2], "arrays") == 0, std::atof(argv[3]));
  Finalize(0, true);
}
