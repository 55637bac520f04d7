// Arrays whose copies share their elements, and which can be cut and cast without copying.
#ifndef PS_SARRAY_H_
#define PS_SARRAY_H_

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "ps/internal/memory.h"
#include "ps/internal/utils.h"
#include "ps/range.h"

namespace ps {

/// An array of plain values. Copies, segments and casts share the memory, which goes with the last of them. In a started worker a long
/// array lies in the library's memory: what is pushed from it, and pulled into it, is not copied there.
template <typename V>
class SArray {
 public:
  SArray() = default;

  /// `size` elements of one value.
  explicit SArray(size_t size, V value = 0) { resize(size, value); }

  /// The same memory as elements of another type.
  template <typename W>
  explicit SArray(const SArray<W> &other) { *this = other; }

  template <typename W>
  void operator=(const SArray<W> &other) {
    const size_t bytes = other.size() * sizeof(W);
    CHECK_EQ(bytes % sizeof(V), size_t{0}) << "an array of " << bytes << " bytes has no whole number of elements";
    size_ = bytes / sizeof(V);
    capacity_ = other.capacity() * sizeof(W) / sizeof(V);
    memory_ = std::shared_ptr<V>(other.ptr(), reinterpret_cast<V *>(other.data()));
  }

  /// Memory of the caller's, which outlives all copies; or of new[], which goes with the last of them.
  SArray(V *data, size_t size, bool deletable = false) {
    if (deletable) {
      reset(data, size, [](V *memory) { delete[] memory; });
    } else {
      reset(data, size, [](V *) {});
    }
  }

  /// A copy of a vector.
  explicit SArray(const std::vector<V> &vector) { CopyFrom(vector.data(), vector.size()); }

  /// A shared vector's elements, not copied. The vector must not grow.
  explicit SArray(const std::shared_ptr<std::vector<V>> &vector)
      : size_(vector->size()), capacity_(vector->size()), memory_(vector, vector->data()) {}

  template <typename W>
  SArray(const std::initializer_list<W> &list) { CopyFrom(list.begin(), list.end()); }

  template <typename W>
  void operator=(const std::initializer_list<W> &list) { CopyFrom(list.begin(), list.end()); }

  void CopyFrom(const V *data, size_t size) {
    // Memory of its own: what it shared with others stays as it is.
    allocate(size);
    size_ = size;
    if (size) std::memcpy(this->data(), data, size * sizeof(V));
  }

  void CopyFrom(const SArray<V> &other) {
    if (this != &other) CopyFrom(other.data(), other.size());
  }

  template <typename Iterator>
  void CopyFrom(const Iterator &first, const Iterator &last) {
    const size_t size = static_cast<size_t>(std::distance(first, last));
    allocate(size);
    size_ = size;
    std::copy(first, last, data());
  }

  /// Other memory from now on, with what frees it.
  template <typename Deleter>
  void reset(V *data, size_t size, Deleter deleter) {
    size_ = size;
    capacity_ = size;
    memory_.reset(data, deleter);
  }

  /// So many elements from now on: the first ones stay, new ones are `value`. Beyond the capacity they move, and copies
  /// keep the old memory.
  void resize(size_t size, V value = 0) {
    const size_t old = size_;
    if (size > capacity_) {
      const std::shared_ptr<V> before = memory_;
      // A little more, so that push_back does not move each time.
      allocate(size + 5);
      if (old) std::memcpy(data(), before.get(), old * sizeof(V));
    }
    size_ = size;
    if (size > old) std::fill(data() + old, data() + size, value);
  }

  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    const std::shared_ptr<V> before = memory_;
    allocate(capacity);
    if (size_) std::memcpy(data(), before.get(), size_ * sizeof(V));
  }

  void clear() { reset(nullptr, 0, [](V *) {}); }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }

  V *begin() { return data(); }
  const V *begin() const { return data(); }
  V *end() { return data() + size_; }
  const V *end() const { return data() + size_; }
  V *data() const { return memory_.get(); }

  std::shared_ptr<V> &ptr() { return memory_; }
  const std::shared_ptr<V> &ptr() const { return memory_; }

  V front() const {
    CHECK(!empty()) << "an empty array has no first element";
    return data()[0];
  }
  V back() const {
    CHECK(!empty()) << "an empty array has no last element";
    return data()[size_ - 1];
  }
  V &operator[](int at) { return data()[at]; }
  const V &operator[](int at) const { return data()[at]; }

  void push_back(const V &value) {
    if (size_ == capacity_) {
      const V copy = value;
      reserve(size_ * 2 + 5);
      data()[size_++] = copy;
      return;
    }
    data()[size_++] = value;
  }

  void pop_back() {
    if (size_) --size_;
  }

  void append(const SArray<V> &other) {
    if (other.empty()) return;
    const SArray<V> keeps = other;
    const size_t old = size_;
    resize(old + keeps.size());
    std::memcpy(data() + old, keeps.data(), keeps.size() * sizeof(V));
  }

  /// Elements from `begin` to below `end`, of the same memory.
  SArray<V> segment(size_t begin, size_t end) const {
    CHECK(begin <= end && end <= size_) << "segment [" << begin << ", " << end << ") of " << size_ << " elements";
    SArray<V> part;
    part.memory_ = std::shared_ptr<V>(memory_, data() + begin);
    part.size_ = part.capacity_ = end - begin;
    return part;
  }

 private:
  /// New memory; its elements have no value yet.
  void allocate(size_t capacity) {
    capacity_ = capacity;
    const size_t bytes = capacity * sizeof(V);
    if (bytes >= detail::Memory::kLongBytes) {
      const std::shared_ptr<void> shared = detail::Memory::Get()->Allocate(bytes);
      if (shared) {
        memory_ = std::shared_ptr<V>(shared, static_cast<V *>(shared.get()));
        return;
      }
    }
    memory_.reset(capacity ? new V[capacity] : nullptr, [](V *memory) { delete[] memory; });
  }

  size_t size_ = 0;
  size_t capacity_ = 0;
  std::shared_ptr<V> memory_;
};

/// Where in a sorted array the elements from `lower` to below `upper` are.
template <typename V>
Range FindRange(const SArray<V> &sorted, V lower, V upper) {
  if (upper <= lower) return Range();
  const V *first = std::lower_bound(sorted.begin(), sorted.end(), lower);
  const V *last = std::lower_bound(first, sorted.end(), upper);
  return Range(first - sorted.begin(), last - sorted.begin());
}

/// The first and last elements, for people.
template <typename V>
std::string DebugStr(const V *data, int count, int shown = 5) {
  std::ostringstream text;
  text << '[' << count << "]: ";
  for (int at = 0; at < count; ++at) {
    if (count >= 2 * shown && at == shown) {
      text << "... ";
      at = count - shown;
    }
    text << data[at] << ' ';
  }
  return text.str();
}

template <typename V>
std::ostream &operator<<(std::ostream &out, const SArray<V> &array) {
  return out << DebugStr(array.data(), static_cast<int>(array.size()));
}

}  // namespace ps
#endif  // PS_SARRAY_H_
