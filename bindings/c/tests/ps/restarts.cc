// A worker's process ends while a server still has a request of its. The next process of this rank makes requests with the same
// timestamps: each answer is that of its own request.
#include <unistd.h>

#include <cstdlib>

#include "check.h"

using namespace ps;

/// Requests of this command wait for their answers.
static const int kLater = 1;
/// Answers how many of those there are.
static const int kCount = 2;
/// Answers the newest one first.
static const int kNewest = 3;
/// Answers the others.
static const int kRest = 4;

struct Slow {
  void operator()(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
    if (meta.cmd == kLater) return waiting.push_back(meta);
    KVPairs<float> answer;
    answer.keys = data.keys;
    answer.vals = SArray<float>(1, static_cast<float>(waiting.size()));
    while (!waiting.empty() && meta.cmd != kCount) {
      server->Response(waiting.back());
      waiting.pop_back();
      if (meta.cmd == kNewest) break;
    }
    server->Response(meta, answer);
  }
  std::vector<KVMeta> waiting;
};

static float Ask(KVWorker<float> *kv, int command) {
  std::vector<float> waiting;
  kv->Wait(kv->Pull({1}, &waiting, nullptr, command));
  return waiting[0];
}

int main() {
  return Run([] {
    StartAsync(0);
    std::unique_ptr<KVServer<float>> server;
    if (IsServer()) {
      server.reset(new KVServer<float>(0));
      server->set_request_handle(Slow());
    }
    if (IsWorker()) {
      KVWorker<float> kv(0, 0);
      const int stamp = kv.Push({1}, {1}, {}, kLater);
      if (std::getenv("FORMER")) {
        CHECK_EQ(Ask(&kv, kCount), 1.0f);
        // Gone without a word.
        std::puts("everything holds");
        std::fflush(stdout);
        _exit(0);
      }
      CHECK_EQ(Ask(&kv, kNewest), 2.0f);
      kv.Wait(stamp);
      // To answer a request of a process that has gone is no mistake, and does nothing.
      CHECK_EQ(Ask(&kv, kRest), 1.0f);
      CHECK_EQ(Ask(&kv, kCount), 0.0f);
    }
    Finalize(0, false);
  });
}
