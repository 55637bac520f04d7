// What the tests' C++ programs share.
#ifndef CHECK_H
#define CHECK_H

#include <functional>
#include <string>

#include "ps/ps.h"

/// The call throws, and what it throws has these words in it.
inline void Refused(const std::string &words, const std::function<void()> &call) {
  try {
    call();
  } catch (const dmlc::Error &error) {
    CHECK(std::string(error.what()).find(words) != std::string::npos) << "wanted \"" << words << "\", got " << error.what();
    return;
  }
  LOG(FATAL) << "not refused: " << words;
}

/// Runs a program's main; a failed check is exit code 1.
inline int Run(const std::function<void()> &program) {
  try {
    program();
  } catch (const std::exception &error) {
    LOG(ERROR) << "failed: " << error.what();
    return 1;
  }
  std::puts("everything holds");
  return 0;
}

#endif  // CHECK_H
