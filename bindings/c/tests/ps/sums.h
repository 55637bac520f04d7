// The handler of programs that push and pull sums.
#ifndef SUMS_H
#define SUMS_H

#include <map>

#include "ps/ps.h"

/// Adds up what is pushed, and answers with what there is.
struct Sums {
  void operator()(const ps::KVMeta &meta, const ps::KVPairs<float> &data, ps::KVServer<float> *server) {
    ps::SArray<float> &sum = sums[data.keys[0]];
    if (meta.push) {
      if (sum.empty()) sum.resize(data.vals.size(), 0);
      for (size_t i = 0; i < data.vals.size(); ++i) sum.data()[i] += data.vals.data()[i];
    }
    ps::KVPairs<float> answer;
    if (meta.pull) {
      answer.keys = data.keys;
      // A copy: pushes that follow change the sum.
      answer.vals.CopyFrom(sum);
    }
    server->Response(meta, answer);
  }
  std::map<ps::Key, ps::SArray<float>> sums;
};

#endif  // SUMS_H
