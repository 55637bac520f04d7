// An app keeps a bounded number of requests that its handler answers later. Beyond it the oldest one goes, whoever made it.
#include <atomic>
#include <cstdlib>

#include "check.h"

using namespace ps;

/// As many as an app keeps.
static const int kKept = 1024;
/// A worker makes so many of them and leaves: fewer may be in flight at once.
static const int kFirst = 1000;

/// Requests with this head wait.
static const int kLater = 1;
/// Answers those that worker 0 made.
static const int kAnswer = 2;
/// Answers how many have come to wait.
static const int kCount = 3;

int main() {
  return Run([] {
    Start(0);
    SimpleApp app(7, 0);
    std::vector<SimpleData> waiting;
    app.set_request_handle([&waiting](const SimpleData &request, SimpleApp *self) {
      if (request.head == kLater) return waiting.push_back(request);
      if (request.head == kAnswer) {
        for (const SimpleData &one : waiting) {
          if (one.sender == Postoffice::WorkerRankToID(0)) self->Response(one);
        }
        // The first one is worker 1's, and was dropped: nothing happens. Of the others each has one answer.
        self->Response(waiting.front());
        Refused("has already been answered", [&] {
          for (const SimpleData &one : waiting) {
            if (one.sender == Postoffice::WorkerRankToID(0)) self->Response(one);
          }
        });
      }
      self->Response(request, std::to_string(waiting.size()));
    });
    std::atomic<int> count(0);
    app.set_response_handle([&count](const SimpleData &answer, SimpleApp *) {
      if (answer.head == kCount) count = std::atoi(answer.body.c_str());
    });
    const auto until = [&](int wanted) {
      do {
        app.Wait(app.Request(kCount, "", kScheduler));
      } while (count < wanted);
    };
    if (IsWorker() && MyRank() == 1) {
      for (int i = 0; i < kFirst; ++i) app.Request(kLater, "", kScheduler);
      until(kFirst);
    }
    if (IsWorker() && MyRank() == 0) {
      until(kFirst);
      const int stamp = app.Request(kLater, "", kScheduler);
      until(kKept + 1);
      app.Wait(app.Request(kAnswer, "", kScheduler));
      app.Wait(stamp);
    }
    if (IsWorker() && MyRank() == 2) {
      until(kFirst + 1);
      for (int i = kFirst; i < kKept; ++i) app.Request(kLater, "", kScheduler);
      until(kKept + 1);
    }
    Finalize(0, false);
  });
}
