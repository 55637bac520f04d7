// Several customers of one worker process, each on a thread of its own and started by itself, as DMLC_NUM_WORKER counts
// them; callbacks come on a thread that is none of theirs.
#include <thread>

#include "check.h"

using namespace ps;

static void Work(int customer) {
  Start(customer);
  {
    KVWorker<int64_t> kv(0, customer);
    const std::vector<Key> keys = {1, kMaxKey / 2 + 1};
    std::vector<int64_t> out;
    std::thread::id callback;
    kv.Wait(kv.Push(keys, {1, 10}, {}, 0, [&] { callback = std::this_thread::get_id(); }));
    CHECK(callback != std::thread::id() && callback != std::this_thread::get_id());
    Postoffice::Get()->Barrier(customer, kWorkerGroup);
    kv.Wait(kv.Pull(keys, &out));
    CHECK(out[0] == NumWorkers() && out[1] == 10 * NumWorkers()) << out[0] << ", " << out[1];
  }
  Finalize(customer, true);
}

int main() {
  return Run([] {
    const char *role = std::getenv("DMLC_ROLE");
    if (role && std::string(role) == "worker") {
      std::thread second(Work, 1);
      Work(0);
      second.join();
      return;
    }
    StartAsync(0, "customers");
    Postoffice::Get()->Barrier(0, kScheduler + kServerGroup + kWorkerGroup);
    if (IsServer()) {
      auto *server = new KVServer<int64_t>(0);
      server->set_request_handle(KVServerDefaultHandle<int64_t>());
      RegisterExitCallback([server] { delete server; });
    }
    Finalize(0, true);
  });
}
