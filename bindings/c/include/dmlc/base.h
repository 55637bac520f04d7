// What programs written for ps-lite expect of this name. Everything they use is in logging.h.
#ifndef DMLC_BASE_H_
#define DMLC_BASE_H_
#include <cstddef>
#include <cstdint>
#endif  // DMLC_BASE_H_
