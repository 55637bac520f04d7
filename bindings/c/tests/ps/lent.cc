// Handlers over shared memory read values where the worker has them. Whatever they do with them, the values are those that were sent,
// although the worker writes its array again as soon as its request has ended, and the worker's array is as the worker left it.
// TEST_WRITTEN is the beginning of the names of files that say so.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "check.h"

using namespace ps;

/// Long enough to be lent, and not as long as whole pages.
static const size_t kSize = (256 << 10) / sizeof(float) - 1;
/// The shortest that is.
static const size_t kLentMin = (64 << 10) / sizeof(float);

enum Command {
  kSum,    // adds the values up, and answers with the sum
  kKeep,   // keeps the array, and its address
  kWrite,  // writes into the array, and adds it up
  kEcho,   // answers with the array
  kEarly,  // is answered first, and read afterwards
  kLocal,  // answers with memory that ends before the handler does
  kOther,  // is answered by another thread, and read afterwards
  kLate,   // is answered after its deadline, and read then
  kThrow,  // throws after its answer
  kLater,  // is answered with the next request
  kTell,   // answers with what was kept
  kIsLent  // answers 1 if the values are in a worker's memory
};

static std::string Written(int command) { return std::string(std::getenv("TEST_WRITTEN")) + std::to_string(command); }

static void WaitUntilWritten(int command) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!std::ifstream(Written(command)).good()) {
    CHECK(std::chrono::steady_clock::now() < until) << "the worker does not go on";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Is the address in memory of another process that is mapped copy on write?
static bool IsLent(const void *address) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char *rest = nullptr;
    const uintptr_t from = std::strtoull(line.c_str(), &rest, 16), to = std::strtoull(rest + 1, &rest, 16);
    if (from <= at && at < to) return line.find("memfd:gradwire") != std::string::npos && rest[4] == 'p';
  }
  return false;
}

struct Handler {
  void operator()(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
    const Key key = data.keys[0];
    KVPairs<float> answer;
    answer.keys = data.keys;
    SArray<float> &kept = (*values)[key];
    if (meta.cmd == kSum || meta.cmd == kWrite) {
      if (meta.cmd == kWrite) {
        for (size_t at = 0; at < data.vals.size(); ++at) data.vals.data()[at] *= 2;
      }
      if (kept.empty()) kept.resize(data.vals.size(), 0);
      for (size_t at = 0; at < data.vals.size(); ++at) kept[at] += data.vals[at];
      answer.vals.CopyFrom(kept);
    } else if (meta.cmd == kKeep) {
      kept = data.vals;
      (*addresses)[key] = data.vals.data();
    } else if (meta.cmd == kEcho) {
      answer.vals = data.vals;
    } else if (meta.cmd == kOther || meta.cmd == kEarly || meta.cmd == kLate) {
      if (meta.cmd == kOther) std::thread([meta, answer, server] { server->Response(meta, answer); }).join();
      if (meta.cmd == kEarly) server->Response(meta);
      WaitUntilWritten(meta.cmd);
      kept.CopyFrom(data.vals);
      if (meta.cmd != kLate) return;
    } else if (meta.cmd == kLocal) {
      std::vector<float> local(16, data.vals.back());
      answer.vals = SArray<float>(local.data(), local.size());
      answer.lens = {16};
      server->Response(meta, answer);
      std::fill(local.begin(), local.end(), -1);
      return;
    } else if (meta.cmd == kLater) {
      waiting->push_back({meta, data});
      return;
    } else if (meta.cmd == kTell) {
      for (const auto &one : *waiting) {
        KVPairs<float> late;
        late.keys = one.second.keys;
        late.vals.CopyFrom(one.second.vals);
        server->Response(one.first, late);
      }
      waiting->clear();
      if (addresses->count(key)) CHECK_EQ((*addresses)[key], kept.data());
      answer.vals = kept;
    } else if (meta.cmd == kIsLent) {
      answer.vals.resize(data.vals.size(), IsLent(data.vals.data()) ? 1 : 0);
    }
    server->Response(meta, meta.pull ? answer : KVPairs<float>());
    if (meta.cmd == kThrow) throw std::runtime_error("after its answer");
  }

  using Waiting = std::vector<std::pair<KVMeta, KVPairs<float>>>;
  std::shared_ptr<std::map<Key, SArray<float>>> values = std::make_shared<std::map<Key, SArray<float>>>();
  std::shared_ptr<std::map<Key, const float *>> addresses = std::make_shared<std::map<Key, const float *>>();
  std::shared_ptr<Waiting> waiting = std::make_shared<Waiting>();
};

struct Worker {
  explicit Worker(bool arrays) : first_key(arrays ? 0 : 100) {
    const auto memory = [arrays](float value) {
      return arrays ? SArray<float>(kSize, value) : SArray<float>(std::make_shared<std::vector<float>>(kSize, value));
    };
    sent = memory(0), got = memory(0);
  }

  void Fill(float value) {
    for (size_t at = 0; at < kSize; ++at) sent[at] = value + at % 7;
  }

  static void Expect(const SArray<float> &array, float value, float times, const char *what) {
    CHECK_EQ(array.size(), kSize);
    size_t at = 0;
    while (at < kSize && array[at] == times * (value + at % 7)) ++at;
    CHECK_EQ(at, kSize) << what << ": there is " << array[at];
  }

  SArray<Key> KeyOf(int command) const { return SArray<Key>({first_key + command}); }

  /// Sends the array, and writes it again when the request has ended.
  void Push(int command, float value) {
    Fill(value);
    kv.Wait(kv.ZPush(KeyOf(command), sent, {}, command));
    Expect(sent, value, 1, "the worker's array");
    Fill(-1000);
    std::ofstream(Written(command)) << "written";
  }

  void PushPull(int command, float value) {
    Fill(value);
    kv.Wait(kv.ZPushPull(KeyOf(command), sent, &got, nullptr, command));
    Expect(sent, value, 1, "the worker's array");
  }

  void Tell(int command, float value, float times, const char *what) {
    kv.Wait(kv.ZPull(KeyOf(command), &got, nullptr, kTell));
    Expect(got, value, times, what);
  }

  /// The more often a handler has kept or written arrays, the more requests are copied before one is lent again.
  void UntilLent() {
    if (!shm) return;
    SArray<float> short_one(kLentMin), answer(kLentMin);
    for (int requests = 0; answer[0] == 0; ++requests) {
      CHECK_LT(requests, 5000) << "nothing is lent any more";
      kv.Wait(kv.ZPushPull(KeyOf(kIsLent), short_one, &answer, nullptr, kIsLent));
    }
  }

  void Train() {
    UntilLent();
    PushPull(kSum, 0);
    for (float round = 2; round <= 20; ++round) {
      PushPull(kIsLent, 0);
      CHECK_EQ(got[0], shm ? 1 : 0);
      PushPull(kSum, 0);
      Expect(got, 0, round, "the sum");
    }
    // The same array for several requests at once.
    std::vector<int> stamps;
    Fill(0);
    for (int i = 0; i < 10; ++i) stamps.push_back(kv.ZPush(KeyOf(kSum), sent, {}, kSum));
    for (const int stamp : stamps) kv.Wait(stamp);
    Tell(kSum, 0, 30, "the sum of an array that was sent ten times");
    for (float round = 1; round <= 2; ++round) {
      UntilLent();
      PushPull(kWrite, 0);
      Expect(got, 0, 2 * round, "the sum of what the handler doubled");
    }
    UntilLent();
    Push(kKeep, 3);
    Tell(kKeep, 3, 1, "what the handler kept");
    UntilLent();
    PushPull(kEcho, 4);
    Expect(got, 4, 1, "the echo");
    Push(kThrow, 1);
    UntilLent();
    Push(kEarly, 5);
    Tell(kEarly, 5, 1, "what was read after the answer");
    UntilLent();
    Fill(5);
    SArray<float> few(16);
    SArray<int> lens({static_cast<int>(kSize)});
    kv.Wait(kv.ZPushPull(KeyOf(kLocal), sent, &few, &lens, kLocal));
    CHECK(lens[0] == 16 && few[0] == sent.back() && few[15] == sent.back()) << "there is " << few[0];
    UntilLent();
    Push(kOther, 5);
    Tell(kOther, 5, 1, "what was read after another thread had answered");
    UntilLent();
    Fill(6);
    Refused("", [&] { kv.Wait(kv.ZPush(KeyOf(kLate), sent, {}, kLate)); });
    Fill(-1000);
    std::ofstream(Written(kLate)) << "written";
    Tell(kLate, 6, 1, "what was read after the deadline");
    UntilLent();
    Fill(7);
    const int later = kv.ZPushPull(KeyOf(kLater), sent, &got, nullptr, kLater);
    SArray<float> other(kSize);
    kv.Wait(kv.ZPull(KeyOf(kKeep), &other, nullptr, kTell));
    kv.Wait(later);
    Expect(got, 7, 1, "what was answered with the next request");
    UntilLent();
    std::remove(Written(kEarly).c_str());
    std::remove(Written(kOther).c_str());
    std::remove(Written(kLate).c_str());
  }

  const bool shm = std::string(std::getenv("GRADWIRE_TRANSPORT__SHM")) == "require";
  KVWorker<float> kv{0, 0};
  Key first_key;
  SArray<float> sent, got;
};

int main() {
  return Run([] {
    Start(0);
    if (IsServer()) {
      auto *server = new KVServer<float>(0);
      server->set_request_handle(Handler());
      RegisterExitCallback([server] { delete server; });
    }
    if (IsWorker()) {
      Worker(true).Train();
      Worker(false).Train();
    }
    Finalize(0, true);
  });
}
