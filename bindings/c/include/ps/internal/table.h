// A worker's values in a table of the library, in place of a handler of the program: servers keep them themselves, with replicas and in
// checkpoints.
#ifndef PS_INTERNAL_TABLE_H_
#define PS_INTERNAL_TABLE_H_

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "ps/internal/library.h"
#include "ps/sarray.h"

namespace ps {

/// What a table does with what is pushed for a key.
enum class Kept {
  /// A handler of the program has the values; there is no table.
  kByHandler,
  /// It is added to what was there, as KVServerDefaultHandle does.
  kSum,
  /// It replaces what was there.
  kAssign
};

namespace detail {

/// The variable PS_GRADWIRE_TABLE: sum or assign.
inline Kept KeptByVariable() {
  const char *value = std::getenv("PS_GRADWIRE_TABLE");
  const std::string text = value ? value : "";
  CHECK(text.empty() || text == "sum" || text == "assign")
      << "PS_GRADWIRE_TABLE is \"" << text << "\": use sum or assign, or leave it out";
  return text == "sum" ? Kept::kSum : text == "assign" ? Kept::kAssign : Kept::kByHandler;
}

/// The table of an app. Each key has a row, with as many values as it had in the first request.
class Table {
 public:
  /// A push under way.
  using Push = std::shared_ptr<GradwireRowsHandle>;

  Table(const std::shared_ptr<GradwireClient> &client, int app_id, Kept kept) : client_(client), app_id_(app_id), kept_(kept) {}

  /// Begins to push; the arrays are the caller's again when it returns.
  Push Begin(const SArray<Key> &keys, const float *values, size_t count) {
    GradwireRowsHandle *handle = nullptr;
    const auto table = Declared(keys.size(), count);
    Must(gradwire_push_rows(client_.get(), table.get(), keys.data(), keys.size(), values, count, &handle), "pushing to a table");
    return Share(handle);
  }

  static void Wait(const Push &push) {
    if (push) Must(gradwire_rows_wait(push.get()), "pushing to a table");
  }

  /// How many values so many keys have: in the first request as many as there is room for, or one each.
  size_t Values(size_t keys, size_t room) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (width_ == 0) width_ = room && room % keys == 0 ? room / keys : 1;
    return keys * width_;
  }

  /// Waits for the values of keys; this worker's pushes before it count.
  void Pull(const SArray<Key> &keys, float *values, size_t count) {
    const auto table = Declared(keys.size(), count);
    Must(gradwire_pull_rows(client_.get(), table.get(), keys.data(), keys.size(), values, count), "pulling from a table");
  }

  /// Held while a request takes its place in the order of requests.
  std::mutex &order() { return order_; }
  /// Whether pushes must not begin yet, because a request before them has not ended.
  bool IsHeld() const { return holds_ != 0; }
  void Hold() { ++holds_; }
  void LetGo() { --holds_; }

 private:
  size_t Width(size_t keys, size_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (width_ == 0 && keys && count % keys == 0) width_ = count / keys;
    CHECK(width_ && count == keys * width_)
        << count << " values for " << keys << " keys: in a table each key has " << (width_ ? width_ : 1) << " of them";
    return width_;
  }

  std::shared_ptr<GradwireTable> Declared(size_t keys, size_t count) {
    const size_t width = Width(keys, count);
    std::lock_guard<std::mutex> lock(mutex_);
    if (table_) return table_;
    GradwireTableSpec spec = GradwireTableSpec();
    spec.key = static_cast<uint32_t>(app_id_);
    spec.width = static_cast<uint32_t>(width);
    const int32_t rule = kept_ == Kept::kSum ? GRADWIRE_RULE_SUM : GRADWIRE_RULE_ASSIGN;
    Must(gradwire_optimizer_default(rule, &spec.optimizer), "declaring a table");
    GradwireTable *made = nullptr;
    Must(gradwire_declare_table(client_.get(), &spec, &made), "declaring a table");
    return table_ = Share(made);
  }

  const std::shared_ptr<GradwireClient> client_;
  const int app_id_;
  const Kept kept_;
  std::mutex order_;
  std::atomic<int> holds_{0};
  std::mutex mutex_;
  size_t width_ = 0;
  std::shared_ptr<GradwireTable> table_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_TABLE_H_
