// Servers are killed and replaced while workers push and pull. Another server keeps the journal of each server's handler, so no push
// is lost, none counts twice, and none is handled in another order.
//
// Test and program talk through files in TEST_DIRECTORY, and through lines. When "mark-N" is there, each worker makes a whole round, which
// all servers answer, and says "passed mark N." When "end" is there, workers end after some more rounds. A server that finds
// "kill-RANK" is killed within a request: after its state has changed, and before it answers.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "check.h"

using namespace ps;

static std::string PathOf(const std::string &name) {
  const char *directory = std::getenv("TEST_DIRECTORY");
  CHECK(directory) << "TEST_DIRECTORY is not set";
  return std::string(directory) + "/" + name;
}

static bool IsThere(const std::string &name) { return access(PathOf(name).c_str(), F_OK) == 0; }

static void Say(const std::string &words) {
  const std::string line = (IsServer() ? "server " : "worker ") + std::to_string(MyRank()) + " " + words;
  std::puts(line.c_str());
  std::fflush(stdout);
}

/// Adds up what is pushed, and answers pulls with the sums after that.
struct Sums {
  void operator()(const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *server) {
    // Each request once, and in its place, whichever process handled those before it.
    CHECK_EQ(meta.request, ++requests);
    KVPairs<float> answer;
    if (meta.pull) {
      answer.keys = data.keys;
      answer.vals.resize(data.keys.size());
    }
    for (size_t at = 0; at < data.keys.size(); ++at) {
      float &sum = sums[data.keys.data()[at]];
      if (meta.push) sum += data.vals.data()[at];
      if (meta.pull) answer.vals.data()[at] = sum;
    }
    // The file is gone before this process is: the next process, which handles this request again, is not killed by it.
    if (unlink(PathOf("kill-" + std::to_string(MyRank())).c_str()) == 0) raise(SIGKILL);
    server->Response(meta, answer);
  }

  std::string Save() const {
    std::string bytes(reinterpret_cast<const char *>(&requests), sizeof(requests));
    for (const auto &sum : sums) {
      bytes.append(reinterpret_cast<const char *>(&sum.first), sizeof(sum.first));
      bytes.append(reinterpret_cast<const char *>(&sum.second), sizeof(sum.second));
    }
    Say("saved its state");
    return bytes;
  }

  void Load(const char *bytes, size_t count) {
    const size_t each = sizeof(Key) + sizeof(float);
    CHECK(count >= sizeof(requests) && (count - sizeof(requests)) % each == 0) << count << " bytes";
    CHECK(requests == 0 && ++loads == 1) << "a state is loaded once, and before all requests";
    std::memcpy(&requests, bytes, sizeof(requests));
    for (size_t at = sizeof(requests); at < count; at += each) {
      Key key;
      float sum;
      std::memcpy(&key, bytes + at, sizeof(key));
      std::memcpy(&sum, bytes + at + sizeof(key), sizeof(sum));
      sums[key] = sum;
    }
    Say("loaded its state");
  }

  uint64_t requests = 0;
  int loads = 0;
  std::map<Key, float> sums;
};

/// Keys at all servers. There are so many that servers keep the arrays, and later requests only name them.
static std::vector<Key> Array(Key offset) {
  std::vector<Key> keys;
  for (Key at = 0; at < 1200; ++at) keys.push_back(at * (kMaxKey / 1200) + offset);
  return keys;
}

static const Key kRounds = 10;

static void Work() {
  KVWorker<float> kv(0, 0);
  const std::vector<Key> own = Array(static_cast<Key>(MyRank())), shared = Array(static_cast<Key>(NumWorkers()));
  const std::vector<float> ones(own.size(), 1.0f);
  std::vector<float> before(shared.size(), 0.0f);
  float rounds = 0;
  int marks = 0;
  for (int left = 20; left > 0;) {
    const bool is_marked = IsThere("mark-" + std::to_string(marks + 1)), ends = IsThere("end");
    std::vector<float> mine, all;
    const int pushed = kv.Push(shared, ones);
    kv.Wait(kv.PushPull(own, ones, &mine));
    kv.Wait(kv.Pull(shared, &all));
    kv.Wait(pushed);
    ++rounds;
    CHECK(mine == std::vector<float>(own.size(), rounds)) << "round " << rounds << " brought " << mine[0];
    for (size_t at = 0; at < all.size(); ++at) {
      CHECK(all[at] >= rounds && all[at] > before[at]) << "round " << rounds << ": " << all[at] << " after " << before[at];
    }
    before = all;
    if (is_marked) Say("passed mark " + std::to_string(++marks) + ".");
    if (ends) --left;
  }
  kv.Wait(kv.Push({kRounds}, {rounds}));
  Postoffice::Get()->Barrier(0, kWorkerGroup);
  std::vector<float> all_rounds, all;
  kv.Wait(kv.Pull({kRounds}, &all_rounds));
  kv.Wait(kv.Pull(shared, &all));
  CHECK(all == std::vector<float>(shared.size(), all_rounds[0])) << all_rounds[0] << " rounds, and a sum of " << all[0];
}

static void Program() {
  Start(0);
  const auto sums = std::make_shared<Sums>();
  const bool is_recovery = Postoffice::Get()->is_recovery();
  if (IsServer()) {
    auto *server = new KVServer<float>(0);
    server->set_request_handle_with_state(sums);
    RegisterExitCallback([server] { delete server; });
    Say(is_recovery ? "replaces another process" : "is the first process");
  }
  if (IsWorker()) Work();
  Finalize(0, true);
  CHECK_EQ(sums->loads, is_recovery ? 1 : 0);
  CHECK(Postoffice::Get()->failure().empty());
}

int main() { return Run(Program); }
