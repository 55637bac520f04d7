// Arrays, ranges, checks and variables: what needs no cluster.
#include "check.h"

using namespace ps;

static int deleted = 0;

static void Arrays() {
  SArray<int> five(5, 3);
  CHECK_EQ(five.size(), size_t{5});
  CHECK_EQ(five.back(), 3);
  SArray<int> same = five;
  same[0] = 9;
  CHECK_EQ(five[0], 9) << "copies share";
  const SArray<int> part = five.segment(1, 3);
  CHECK_EQ(part.data(), five.data() + 1) << "segments share";
  SArray<char> bytes(five);
  CHECK_EQ(bytes.size(), 5 * sizeof(int));
  SArray<int> back(bytes);
  CHECK_EQ(static_cast<void *>(back.data()), static_cast<void *>(five.data()));
  Refused("no whole number", [] { SArray<int> odd(SArray<char>(7)); });
  Refused("segment [2, 9)", [&] { five.segment(2, 9); });
  Refused("no first element", [] { SArray<int>().front(); });
  same.resize(4);
  CHECK_EQ(same.data(), five.data()) << "what becomes shorter stays";
  same.resize(100, 8);
  CHECK(same.data() != five.data() && same[3] == five[3] && same[99] == 8);
  SArray<int> grown;
  for (int i = 0; i < 100; ++i) grown.push_back(i);
  CHECK_EQ(grown[99], 99);
  grown.append(grown);
  CHECK(grown.size() == 200 && grown[100] == 0 && grown[199] == 99);
  grown.pop_back();
  CHECK_EQ(grown.size(), size_t{199});
  SArray<int> listed = {1, 3, 5, 7, 9};
  const Range found = FindRange(listed, 2, 7);
  CHECK(found.begin() == 1 && found.end() == 3 && found.size() == 2);
  CHECK_EQ(FindRange(listed, 7, 2).size(), uint64_t{0});
  std::vector<int> vector = {4, 5};
  SArray<int> copy(vector);
  vector[0] = 0;
  CHECK_EQ(copy[0], 4);
  const auto shared = std::make_shared<std::vector<int>>(2, 6);
  SArray<int> view(shared);
  CHECK_EQ(view.data(), shared->data());
  {
    SArray<int> owned;
    owned.reset(new int[1], 1, [](int *memory) {
      ++deleted;
      delete[] memory;
    });
    SArray<char> cast(owned);
    owned.clear();
    CHECK_EQ(deleted, 0) << "the cast has it still";
  }
  CHECK_EQ(deleted, 1);
  SArray<int> mine(new int[2], 2, true);
  mine.CopyFrom(listed);
  CHECK_EQ(mine.size(), size_t{5});
  std::ostringstream text;
  text << listed;
  CHECK_EQ(text.str(), "[5]: 1 3 5 7 9 ");
}

static void Small() {
  Environment::Init({{"MY_NUMBER", "7"}, {"MY_WORD", "word"}});
  CHECK_EQ(GetEnv("MY_NUMBER", 1), 7);
  CHECK_EQ(GetEnv("MY_OTHER_NUMBER", 1), 1);
  CHECK_EQ(GetEnv("MY_WORD", std::string("else")), "word");
  CHECK(Environment::Get()->find("PATH") != nullptr) << "the process's are there, too";
  CHECK_EQ(Postoffice::WorkerRankToID(2), 13);
  CHECK_EQ(Postoffice::ServerRankToID(2), 12);
  CHECK_EQ(Postoffice::IDtoRank(13), 2);
  CHECK_EQ(Postoffice::IDtoRank(kScheduler), 0);
  const int one = 1;
  CHECK_EQ(*CHECK_NOTNULL(&one), 1);
  const int *none = nullptr;
  Refused("none", [&] { CHECK_NOTNULL(none); });
  Refused("Check failed: 1 == 2 so it is", [] { CHECK_EQ(1, 2) << "so it is"; });
  Environment::Init({});
  Refused("DMLC_ROLE is not set", [] { Start(0); });
}

int main() {
  return Run([] {
    Arrays();
    Small();
  });
}
