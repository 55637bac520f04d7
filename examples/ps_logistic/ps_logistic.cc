// Logistic regression in the manner of ps-lite: one program for all roles, a handler of its own on servers, and synchronous
// steps. It uses nothing but ps/ps.h.
//
// A worker pulls the weights, computes the gradient of its own samples, and pushes it. Servers keep pushes until every worker's
// is there, add them up in order of rank, and make one step; so all workers see the same weights in every step, and two runs
// end with the same ones. Weights are spread evenly over the key space, and so over all servers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ps/ps.h"

namespace {

struct Options {
  int steps = 60;
  int features = 200;
  int samples = 3000;
  float rate = 2.0f;
  uint64_t seed = 7;
};

const char kHelp[] =
    "ps_logistic: logistic regression over a parameter server, through ps/ps.h\n"
    "  --steps N     synchronous steps (60)\n"
    "  --features N  weights (200)\n"
    "  --samples N   training samples of each worker (3000)\n"
    "  --rate R      step size (2.0)\n"
    "  --seed N      of the data (7)\n"
    "Roles, addresses and counts come from DMLC_* variables: run it by `gradwire launch --every-role`.\n";

Options Parse(int argc, char **argv) {
  Options options;
  for (int at = 1; at < argc; ++at) {
    const std::string flag = argv[at];
    if (flag == "--help" || flag == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    CHECK(at + 1 < argc) << flag << " needs a value; see --help";
    const char *value = argv[++at];
    if (flag == "--steps") options.steps = std::atoi(value);
    else if (flag == "--features") options.features = std::atoi(value);
    else if (flag == "--samples") options.samples = std::atoi(value);
    else if (flag == "--rate") options.rate = std::strtof(value, nullptr);
    else if (flag == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    else LOG(FATAL) << "there is no " << flag << "; see --help";
  }
  CHECK(options.steps > 0 && options.features > 0 && options.samples > 0) << "all counts are at least 1";
  return options;
}

/// Numbers from a seed, the same on every machine: SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t bits = state_ += 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    return bits ^ (bits >> 31);
  }

  /// From -1 to below 1.
  float Number() { return static_cast<float>(Next() >> 40) / static_cast<float>(1 << 23) - 1.0f; }

 private:
  uint64_t state_;
};

/// Samples of ten features each; a sample's label is the side of a hidden plane that it is on, and one in 50 is wrong.
struct Samples {
  static const int kEach = 10;

  Samples(const Options &options, int stream, int count) {
    Random plane(options.seed), random(options.seed * 1000 + static_cast<uint64_t>(stream) + 1);
    std::vector<float> hidden(static_cast<size_t>(options.features));
    for (float &weight : hidden) weight = plane.Number();
    for (int sample = 0; sample < count; ++sample) {
      float side = 0;
      for (int at = 0; at < kEach; ++at) {
        places.push_back(static_cast<int>(random.Next() % hidden.size()));
        values.push_back(random.Number());
        side += hidden[static_cast<size_t>(places.back())] * values.back();
      }
      const bool is_wrong = random.Next() % 50 == 0;
      labels.push_back((side > 0) != is_wrong ? 1.0f : 0.0f);
    }
  }

  float Score(size_t sample, const std::vector<float> &weights) const {
    float score = 0;
    for (size_t at = sample * kEach; at < (sample + 1) * kEach; ++at) {
      score += weights[static_cast<size_t>(places[at])] * values[at];
    }
    return score;
  }

  std::vector<float> Gradient(const std::vector<float> &weights) const {
    std::vector<float> gradient(weights.size());
    for (size_t sample = 0; sample < labels.size(); ++sample) {
      const float off = 1.0f / (1.0f + std::exp(-Score(sample, weights))) - labels[sample];
      for (size_t at = sample * kEach; at < (sample + 1) * kEach; ++at) {
        gradient[static_cast<size_t>(places[at])] += off * values[at] * 10.0f / static_cast<float>(labels.size());
      }
    }
    return gradient;
  }

  float Accuracy(const std::vector<float> &weights) const {
    size_t right = 0;
    for (size_t sample = 0; sample < labels.size(); ++sample) {
      right += (Score(sample, weights) > 0) == (labels[sample] > 0.5f);
    }
    return static_cast<float>(right) / static_cast<float>(labels.size());
  }

  std::vector<int> places;
  std::vector<float> values;
  std::vector<float> labels;
};

/// A server's part of the weights.
class Model {
 public:
  explicit Model(float rate) : rate_(rate) {}

  void operator()(const ps::KVMeta &request, const ps::KVPairs<float> &data, ps::KVServer<float> *server) {
    if (request.pull) {
      ps::KVPairs<float> answer;
      answer.keys = data.keys;
      for (const ps::Key key : data.keys) answer.vals.push_back(weights_[key]);
      server->Response(request, answer);
      return;
    }
    // Its arrays lie where the library received them, for as long as they are kept here. By sender: in order of rank.
    waiting_[request.sender] = std::make_pair(request, data);
    if (waiting_.size() < static_cast<size_t>(ps::NumWorkers())) return;
    for (const auto &one : waiting_) {
      const ps::KVPairs<float> &gradient = one.second.second;
      for (size_t at = 0; at < gradient.keys.size(); ++at) {
        sum_[gradient.keys.data()[at]] += gradient.vals.data()[at];
      }
    }
    for (auto &one : sum_) {
      weights_[one.first] -= rate_ * one.second / static_cast<float>(waiting_.size());
      one.second = 0;
    }
    for (const auto &one : waiting_) server->Response(one.second.first);
    waiting_.clear();
  }

 private:
  const float rate_;
  std::map<ps::Key, float> weights_;
  std::map<ps::Key, float> sum_;
  std::map<int, std::pair<ps::KVMeta, ps::KVPairs<float>>> waiting_;
};

/// A number that tells weights apart to the last bit: FNV-1a.
uint64_t Fingerprint(const std::vector<float> &weights) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const float weight : weights) {
    uint32_t bits = 0;
    std::memcpy(&bits, &weight, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3ull;
  }
  return hash;
}

void Work(const Options &options) {
  const size_t features = static_cast<size_t>(options.features);
  std::vector<ps::Key> keys(features);
  for (size_t at = 0; at < features; ++at) keys[at] = ps::kMaxKey / features * at;
  const Samples own(options, ps::MyRank(), options.samples), unseen(options, 1 << 20, 2000);
  ps::KVWorker<float> kv(0, 0);
  std::vector<float> weights;
  for (int step = 0; step <= options.steps; ++step) {
    kv.Wait(kv.Pull(keys, &weights));
    if (step % 20 == 0) std::printf("worker %d: step %d, accuracy %.4f\n", ps::MyRank(), step, unseen.Accuracy(weights));
    // Ends when all workers have pushed and the step is made.
    if (step < options.steps) kv.Wait(kv.Push(keys, own.Gradient(weights)));
  }
  std::printf("worker %d: accuracy %.4f on unseen samples, weights %016llx\n", ps::MyRank(), unseen.Accuracy(weights),
              static_cast<unsigned long long>(Fingerprint(weights)));
}

}  // namespace

int main(int argc, char **argv) {
  try {
    const Options options = Parse(argc, argv);
    ps::Start(0);
    if (ps::IsServer()) {
      auto *server = new ps::KVServer<float>(0);
      server->set_request_handle(Model(options.rate));
      ps::RegisterExitCallback([server] { delete server; });
    }
    if (ps::IsWorker()) Work(options);
    ps::Finalize(0, true);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "ps_logistic: %s\n", error.what());
    return 1;
  }
  return ps::Postoffice::Get()->failure().empty() ? 0 : 1;
}
