// Messages between all nodes: from the scheduler to everyone and itself, from workers to servers and each other, answered
// at once and later; bodies, heads and senders are right. Thousands at once, more than a node may owe, are answered, too.
#include <atomic>

#include "check.h"

using namespace ps;

static std::atomic<int> came(0);
/// Requests that each worker makes at once.
static const int kFlood = 1500;

int main() {
  return Run([] {
    Start(0);
    SimpleApp app(7, 0);
    app.set_request_handle([](const SimpleData &request, SimpleApp *self) {
      const bool is_early = ++came <= 50;
      CHECK(request.head == 3 || request.head == 4) << request.head;
      self->Response(request, request.body + "/" + std::to_string(Postoffice::Get()->van()->my_node().id));
      // Each refusal is logged.
      if (is_early) Refused("has already been answered", [&] { self->Response(request); });
    });
    std::atomic<int> answers(0);
    app.set_response_handle([&answers](const SimpleData &answer, SimpleApp *) {
      CHECK_EQ(answer.body, "ping/" + std::to_string(answer.sender));
      ++answers;
    });
    const int everyone = kScheduler + kServerGroup + kWorkerGroup;
    const int nodes = 1 + NumServers() + NumWorkers();
    Postoffice::Get()->Barrier(0, everyone);
    if (IsScheduler()) {
      const int rounds = 50;
      std::vector<int> stamps;
      for (int i = 0; i < rounds; ++i) stamps.push_back(app.Request(3, "ping", everyone));
      for (const int stamp : stamps) app.Wait(stamp);
      CHECK_EQ(answers.load(), rounds * nodes);
      CHECK_EQ(app.get_customer()->NumResponse(stamps[0]), nodes);
    }
    Postoffice::Get()->Barrier(0, everyone);
    CHECK_EQ(came.load(), 50);
    // A worker that is first must not be counted among these.
    Postoffice::Get()->Barrier(0, everyone);
    if (IsWorker()) {
      app.Wait(app.Request(4, "ping", kServerGroup));
      app.Wait(app.Request(4, "ping", Postoffice::WorkerRankToID((MyRank() + 1) % NumWorkers())));
      app.Wait(app.Request(4, "ping", kScheduler));
      CHECK_EQ(answers.load(), NumServers() + 2);
      std::vector<int> stamps;
      for (int i = 0; i < kFlood; ++i) stamps.push_back(app.Request(4, "ping", kScheduler));
      for (const int stamp : stamps) app.Wait(stamp);
      Refused("there is no node or group 99", [&] { app.Request(3, "", 99); });
      // More than a message may have.
      Refused("the limit is 1048576", [&] { app.Wait(app.Request(4, std::string(2 << 20, 'x'), kScheduler)); });
    }
    Postoffice::Get()->Barrier(0, everyone);
    const int flood = IsScheduler() ? kFlood * NumWorkers() : 0;
    CHECK_EQ(came.load(), flood + 50 + (IsServer() || IsScheduler() ? NumWorkers() : 1));
    CHECK(Postoffice::Get()->GetDeadNodes().empty() && !Postoffice::Get()->is_recovery());
    Finalize(0, true);
  });
}
