// What the tests' C++ programs share.
#ifndef CHECK_H
#define CHECK_H

#include <atomic>
#include <functional>
#include <string>

#include "ps/ps.h"

/// Handlers and callbacks run these, too, and what is thrown there is only logged: so a failure is counted.
inline std::atomic<int> &Failures() {
  static std::atomic<int> failures(0);
  return failures;
}

/// The call throws, and what it throws has these words in it.
inline void Refused(const std::string &words, const std::function<void()> &call) {
  try {
    call();
  } catch (const dmlc::Error &error) {
    if (std::string(error.what()).find(words) != std::string::npos) return;
    ++Failures();
    LOG(FATAL) << "wanted \"" << words << "\", got " << error.what();
  }
  ++Failures();
  LOG(FATAL) << "not refused: " << words;
}

/// Runs a program's main; a failed check is exit code 1.
inline int Run(const std::function<void()> &program) {
  try {
    program();
    CHECK_EQ(Failures().load(), 0);
  } catch (const std::exception &error) {
    LOG(ERROR) << "failed: " << error.what();
    return 1;
  }
  std::puts("everything holds");
  return 0;
}

#endif  // CHECK_H
