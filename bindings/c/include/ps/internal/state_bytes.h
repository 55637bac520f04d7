// The state of a server's handler as bytes: numbers and arrays, one after the other. Bytes that are read may be anything, so
// every length is checked, and a wrong one throws.
#ifndef PS_INTERNAL_STATE_BYTES_H_
#define PS_INTERNAL_STATE_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "ps/sarray.h"

namespace ps {
namespace detail {

/// Appends to a state. Numbers have the byte order of this machine, as in requests.
class StateWriter {
 public:
  void Number(uint64_t number) { Value(number); }

  /// Any plain number.
  template <typename V>
  void Value(const V &value) {
    bytes_.append(reinterpret_cast<const char *>(&value), sizeof(V));
  }

  /// Its size, and then its elements.
  template <typename V>
  void Array(const SArray<V> &array) {
    Number(array.size());
    if (!array.empty()) bytes_.append(reinterpret_cast<const char *>(array.data()), array.size() * sizeof(V));
  }

  /// All that was appended.
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads a state from its beginning. It does not own the bytes.
class StateReader {
 public:
  StateReader(const char *bytes, size_t count) : at_(bytes), left_(count) {}

  uint64_t Number() { return Value<uint64_t>(); }

  /// A number up to `most`.
  uint64_t Number(uint64_t most) {
    const uint64_t number = Number();
    CHECK(number <= most) << "this is no saved state: it has the number " << number << ", and at most " << most
                          << " is possible there";
    return number;
  }

  template <typename V>
  V Value() {
    V value;
    std::memcpy(&value, Next(sizeof(V)), sizeof(V));
    return value;
  }

  /// An array of at most `most` elements, copied.
  template <typename V>
  SArray<V> Array(size_t most) {
    const size_t count = static_cast<size_t>(Number(most));
    // Compared by division, so that no product overflows, and before memory is allocated.
    CHECK(count <= left_ / sizeof(V)) << "this is no saved state: it ends within an array of " << count << " elements";
    SArray<V> array;
    array.resize(count);
    if (count) std::memcpy(static_cast<void *>(array.data()), Next(count * sizeof(V)), count * sizeof(V));
    return array;
  }

  /// Where the next bytes are, and how many are left.
  const char *at() const { return at_; }
  size_t left() const { return left_; }

  /// Everything was read.
  void End() const { CHECK(left_ == 0) << "this is no saved state: " << left_ << " bytes follow its end"; }

 private:
  const char *Next(size_t count) {
    CHECK(count <= left_) << "this is no saved state: it ends " << count - left_ << " bytes too early";
    const char *next = at_;
    at_ += count;
    left_ -= count;
    return next;
  }

  const char *at_;
  size_t left_;
};

}  // namespace detail
}  // namespace ps
#endif  // PS_INTERNAL_STATE_BYTES_H_
