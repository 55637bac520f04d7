// Requests that nobody answers, workers that are deleted by their own callback, and a member that dies without leaving: what
// is kept is bounded, Finalize returns, and the exit callback runs.
#include <unistd.h>

#include <atomic>
#include <future>

#include "check.h"

using namespace ps;

/// Requests of this command wait for their answers.
static const int kLater = 1;
/// Answers how many of those are kept, and then all of them.
static const int kNow = 2;

struct Slow {
  void operator()(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
    if (meta.cmd == kLater) {
      waiting.push_back(meta);
      bodies.push_back(data.keys.ptr());
      return;
    }
    KVPairs<float> answer;
    answer.keys = data.keys;
    float kept = 0;
    for (const auto &body : bodies) kept += body.expired() ? 0 : 1;
    answer.vals = SArray<float>(1, kept);
    // The oldest are let go of: to answer them is no mistake, and does nothing.
    for (const KVMeta &one : waiting) server->Response(one);
    Refused("has already been answered", [&] { server->Response(waiting.back()); });
    waiting.clear();
    server->Response(meta, answer);
  }
  std::vector<KVMeta> waiting;
  std::vector<std::weak_ptr<Key>> bodies;
};

static void Unanswered() {
  KVWorker<float> kv(0, 0);
  // More than may be under way at once: the second ones are sent when the first have ended at their deadline.
  for (int wave = 0; wave < 2; ++wave) {
    std::vector<int> stamps;
    for (int i = 0; i < 100; ++i) stamps.push_back(kv.Push({1}, {1}, {}, kLater));
    for (const int stamp : stamps) Refused("", [&] { kv.Wait(stamp); });
  }
  std::vector<float> kept;
  kv.Wait(kv.Pull({1}, &kept, nullptr, kNow));
  // The pull itself is the one that is missing.
  CHECK_EQ(kept[0], 127.0f) << kept[0] << " requests are kept";
}

static void DeletedByItsCallback() {
  auto *kv = new KVWorker<float>(1, 1);
  std::promise<void> deleted;
  kv->Push({1}, {2}, {}, 0, [&] {
    delete kv;
    deleted.set_value();
  });
  CHECK(deleted.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready) << "its callback";
  KVWorker<float> next(1, 1);
  std::vector<float> out;
  next.Wait(next.Pull({1}, &out));
  CHECK_GE(out[0], 2);
  // A wait in a callback would wait for itself.
  std::promise<std::string> told;
  next.Pull({1}, &out, nullptr, 0, [&] {
    try {
      next.Wait(next.Push({1}, {0}, {}, 0, [] {}));
    } catch (const dmlc::Error &error) {
      told.set_value(error.what());
      return;
    }
    told.set_value("");
  });
  CHECK(told.get_future().get().find("on the thread that callbacks run on") != std::string::npos);
}

int main() {
  return Run([] {
    static std::atomic<bool> left(false);
    Start(0);
    RegisterExitCallback([] { left = true; });
    std::unique_ptr<KVServer<float>> slow, sums;
    if (IsServer()) {
      slow.reset(new KVServer<float>(0));
      slow->set_request_handle(Slow());
      sums.reset(new KVServer<float>(1));
      sums->set_request_handle(KVServerDefaultHandle<float>());
      RegisterExitCallback([&] {
        slow.reset();
        sums.reset();
        left = true;
      });
    }
    if (IsWorker()) {
      if (MyRank() == 0) Unanswered();
      DeletedByItsCallback();
      Postoffice::Get()->Barrier(0, kWorkerGroup);
      if (MyRank() == 1) {
        // Gone without a word.
        std::puts("everything holds");
        std::fflush(stdout);
        _exit(0);
      }
    }
    Finalize(0, true);
    CHECK(left) << "the exit callback did not run";
    CHECK(!Postoffice::Get()->failure().empty()) << "the job ended well, and should not have";
  });
}
