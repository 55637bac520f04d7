// Small things that programs written for ps-lite use.
#ifndef PS_INTERNAL_UTILS_H_
#define PS_INTERNAL_UTILS_H_

#include <cinttypes>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "dmlc/logging.h"
#include "ps/internal/env.h"

namespace ps {

/// A variable made into a V, or what to take without it.
template <typename V>
inline V GetEnv(const char *name, V otherwise) {
  const char *value = Environment::Get()->find(name);
  return value ? V(value) : otherwise;
}

/// As above, of numbers.
inline int GetEnv(const char *name, int otherwise) {
  const char *value = Environment::Get()->find(name);
  return value ? std::atoi(value) : otherwise;
}

}  // namespace ps

#ifndef DISALLOW_COPY_AND_ASSIGN
#define DISALLOW_COPY_AND_ASSIGN(TypeName) \
  TypeName(const TypeName &);              \
  void operator=(const TypeName &)
#endif

#define LL LOG(ERROR)

#endif  // PS_INTERNAL_UTILS_H_
