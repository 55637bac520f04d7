// What a customer remembers of its requests: failed ones never read as ones that went well, and it does not grow.
#include "check.h"

using namespace ps;

static void FailuresStay() {
  detail::Ledger ledger(0);
  const int count = 5000;
  for (int i = 0; i < count; ++i) CHECK_EQ(ledger.NewRequest(1), i);
  for (int i = 0; i < count; ++i) ledger.Fail(i, "the server of request " + std::to_string(i) + " died");
  const int good = ledger.NewRequest(2);
  ledger.Add(good, 1);
  CHECK(ledger.IsOpen(good) && ledger.Answers(good) == 1);
  ledger.Add(good, 1);
  ledger.Wait(good);
  for (int again = 0; again < 2; ++again) {
    for (int i = 0; i < count; ++i) Refused("request", [&] { ledger.Wait(i); });
  }
  Refused("request 4999 died", [&] { ledger.Wait(count - 1); });
  Refused("none of this customer's requests", [&] { ledger.Wait(good + 1); });
}

/// Every second one fails, more of them than stretches are kept: the newest are told apart, and of the oldest none is forgotten.
static void StretchesAreBounded() {
  detail::Ledger ledger(0);
  const int count = 6000;
  for (int i = 0; i < count; ++i) {
    ledger.NewRequest(1);
    if (i % 2) {
      ledger.Fail(i, "odd");
    } else {
      ledger.Add(i, 1);
    }
  }
  for (int i = 1; i < count; i += 2) Refused(i < count - 2048 ? "the log has the reasons" : "odd", [&] { ledger.Wait(i); });
  for (int i = count - 2000; i < count; i += 2) ledger.Wait(i);
}

int main() {
  return Run([] {
    FailuresStay();
    StretchesAreBounded();
  });
}
