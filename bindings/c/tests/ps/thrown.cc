// Handlers and callbacks that throw something that is no exception: the process lives, and the requests fail.
#include "check.h"

using namespace ps;

int main() {
  return Run([] {
    Start(0);
    SimpleApp app(7, 0);
    app.set_request_handle([](const SimpleData &request, SimpleApp *self) {
      self->Response(request);
      throw 1;
    });
    app.set_response_handle([](const SimpleData &, SimpleApp *) { throw "a word"; });
    std::unique_ptr<KVServer<float>> server;
    if (IsServer()) {
      server.reset(new KVServer<float>(0));
      server->set_request_handle([](const KVMeta &meta, const KVPairs<float> &data, KVServer<float> *self) {
        if (meta.cmd) throw 2;
        KVServerDefaultHandle<float>()(meta, data, self);
      });
    }
    Postoffice::Get()->Barrier(0, kScheduler + kServerGroup + kWorkerGroup);
    if (IsWorker()) {
      const std::string words = "it threw something that is no std::exception";
      KVWorker<float> kv(0, 0);
      const int thrown = kv.Push({1}, {1}, {}, 0, [] { throw 3; });
      Refused(words, [&] { kv.Wait(thrown); });
      Refused("", [&] { kv.Wait(kv.Push({1}, {1}, {}, 1)); });
      kv.Wait(kv.Push({1}, {1}));
      const int told = app.Request(1, "", kServerGroup);
      Refused(words, [&] { app.Wait(told); });
    }
    Finalize(0, true);
  });
}
