// The logging and checking macros that programs written for ps-lite use. A failed check throws dmlc::Error; nothing here
// ends the process. A program that has another logging.h of this name may include that one instead, before ours.
#ifndef DMLC_LOGGING_H_
#define DMLC_LOGGING_H_

#include <chrono>
#include <cstdio>
#include <ctime>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace dmlc {

/// What failed checks and fatal messages throw, and every call of the ps headers that the cluster refuses.
struct Error : public std::runtime_error {
  explicit Error(const std::string &what) : std::runtime_error(what) {}
};

/// Kept for programs that call it.
inline void InitLogging(const char *) {}

namespace detail {

/// One line, written whole to stderr when it is complete.
class Line {
 public:
  Line(const char *file, int line) {
    const std::time_t now = std::time(nullptr);
    std::tm parts;
    char clock[16] = "";
    if (localtime_r(&now, &parts)) std::strftime(clock, sizeof(clock), "%H:%M:%S", &parts);
    text_ << '[' << clock << "] " << file << ':' << line << ": ";
  }
  Line(const Line &) = delete;
  Line &operator=(const Line &) = delete;
  ~Line() {
    text_ << '\n';
    const std::string text = text_.str();
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
  std::ostream &stream() { return text_; }

 private:
  std::ostringstream text_;
};

/// As Line, and throws.
class FatalLine {
 public:
  FatalLine(const char *file, int line) { text_ << file << ':' << line << ": "; }
  FatalLine(const FatalLine &) = delete;
  FatalLine &operator=(const FatalLine &) = delete;
  ~FatalLine() noexcept(false) {
    const std::string text = text_.str();
    std::fprintf(stderr, "%s\n", text.c_str());
    throw Error(text);
  }
  std::ostream &stream() { return text_; }

 private:
  std::ostringstream text_;
};

/// Lets a macro be an expression without a value.
struct Silent {
  void operator&(std::ostream &) {}
};

template <typename T>
T NotNull(T &&pointer, const char *file, int line, const char *what) {
  if (pointer == nullptr) FatalLine(file, line).stream() << "Check  notnull: " << what;
  return std::forward<T>(pointer);
}

}  // namespace detail
}  // namespace dmlc

#define LOG_INFO ::dmlc::detail::Line(__FILE__, __LINE__)
#define LOG_WARNING LOG_INFO
#define LOG_ERROR LOG_INFO
#define LOG_FATAL ::dmlc::detail::FatalLine(__FILE__, __LINE__)
#define LOG_QFATAL LOG_FATAL

#define LOG(severity) LOG_##severity.stream()
#define LG LOG_INFO.stream()
#define VLOG(level) LOG_INFO.stream()
#define LOG_IF(severity, condition) !(condition) ? (void)0 : ::dmlc::detail::Silent() & LOG(severity)
#define LOG_EVERY_N(severity, n) LOG(severity)

#define CHECK(condition)   \
  (condition) ? (void)0    \
              : ::dmlc::detail::Silent() & LOG_FATAL.stream() << "Check failed: " #condition << ' '
#define DMLC_COMPARE(x, op, y) \
  ((x)op(y)) ? (void)0        \
             : ::dmlc::detail::Silent() & LOG_FATAL.stream() << "Check failed: " #x " " #op " " #y " "
#define CHECK_LT(x, y) DMLC_COMPARE(x, <, y)
#define CHECK_GT(x, y) DMLC_COMPARE(x, >, y)
#define CHECK_LE(x, y) DMLC_COMPARE(x, <=, y)
#define CHECK_GE(x, y) DMLC_COMPARE(x, >=, y)
#define CHECK_EQ(x, y) DMLC_COMPARE(x, ==, y)
#define CHECK_NE(x, y) DMLC_COMPARE(x, !=, y)
#define CHECK_NOTNULL(pointer) ::dmlc::detail::NotNull((pointer), __FILE__, __LINE__, #pointer)

#ifdef NDEBUG
#define DCHECK(condition) \
  true ? (void)0 : ::dmlc::detail::Silent() & LOG_FATAL.stream() << (condition)
#define LOG_DFATAL LOG_ERROR
#define DLOG(severity) true ? (void)0 : ::dmlc::detail::Silent() & LOG(severity)
#define DLOG_IF(severity, condition) \
  (true || !(condition)) ? (void)0 : ::dmlc::detail::Silent() & LOG(severity)
#else
#define DCHECK(condition) CHECK(condition)
#define LOG_DFATAL LOG_FATAL
#define DLOG(severity) LOG(severity)
#define DLOG_IF(severity, condition) LOG_IF(severity, condition)
#endif
#define DCHECK_LT(x, y) DCHECK((x) < (y))
#define DCHECK_GT(x, y) DCHECK((x) > (y))
#define DCHECK_LE(x, y) DCHECK((x) <= (y))
#define DCHECK_GE(x, y) DCHECK((x) >= (y))
#define DCHECK_EQ(x, y) DCHECK((x) == (y))
#define DCHECK_NE(x, y) DCHECK((x) != (y))

#endif  // DMLC_LOGGING_H_
