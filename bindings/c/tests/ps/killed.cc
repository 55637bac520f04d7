// A worker whose values are in a table with replicas pushes and pulls while a server is killed: no push is lost, and none counts twice.
// It says "running", and ends some rounds after the file TEST_KILLED is there.
#include <cstdlib>
#include <fstream>

#include "check.h"
#include "sums.h"

using namespace ps;

static void Program() {
  Start(0);
  if (IsServer()) {
    auto *server = new KVServer<float>(0);
    server->set_request_handle(KVServerDefaultHandle<float>());
    RegisterExitCallback([server] { delete server; });
  }
  if (IsWorker()) {
    KVWorker<float> kv(0, 0);
    kv.KeepInTable(Kept::kSum);
    std::vector<Key> keys;
    for (Key key = 0; key < 100; ++key) keys.push_back(key * (kMaxKey / 200));
    const std::vector<float> ones(keys.size(), 1.0f);
    float rounds = 0;
    for (int left = 50; left > 0;) {
      std::vector<float> got;
      const int pushed = kv.Push(keys, ones);
      kv.Wait(kv.Pull(keys, &got));
      kv.Wait(pushed);
      CHECK(got == std::vector<float>(keys.size(), ++rounds)) << "round " << rounds << " brought " << got[0];
      if (rounds == 10) std::puts("running"), std::fflush(stdout);
      if (std::ifstream(std::getenv("TEST_KILLED")).good()) --left;
    }
  }
  Finalize(0, true);
}

int main() { return Run(Program); }
