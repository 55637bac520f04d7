// A request that fails at one server is not over while another server has it: until then that server may read the caller's array.
#include <chrono>
#include <future>

#include "check.h"

using namespace ps;

static void Program() {
  Start(0);
  KVServer<float> *server = nullptr, *second = nullptr;
  auto held = std::make_shared<std::promise<KVMeta>>();
  if (IsServer()) {
    server = new KVServer<float>(0);
    server->set_request_handle([held](const KVMeta &meta, const KVPairs<float> &, KVServer<float> *) {
      CHECK(MyRank() == 0) << "it is told to fail";
      held->set_value(meta);
    });
    second = new KVServer<float>(1);
    second->set_request_handle([held, server](const KVMeta &meta, const KVPairs<float> &, KVServer<float> *self) {
      if (MyRank() == 0) server->Response(held->get_future().get());
      self->Response(meta);
    });
    RegisterExitCallback([server, second] {
      delete second;
      delete server;
    });
  }
  if (IsWorker()) {
    KVWorker<float> kv(0, 0), other(1, 1);
    const SArray<Key> keys({Key(1), kMaxKey / 2 + 5});
    SArray<float> values(2 * 50000, 1.0f);
    const int pushed = kv.ZPush(keys, values);
    auto ended = std::async(std::launch::async, [&] { Refused("dropped the request", [&] { kv.Wait(pushed); }); });
    CHECK(ended.wait_for(std::chrono::milliseconds(300)) == std::future_status::timeout) << "a server has it still";
    other.Wait(other.Push({Key(1), kMaxKey / 2 + 5}, {1, 1}));
    ended.get();
  }
  Finalize(0, true);
}

int main() { return Run(Program); }
