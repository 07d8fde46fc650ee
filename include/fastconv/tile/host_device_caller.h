// For functions that call back, on either side.
#pragma once

#include "fastconv/core/problem.h"

// What is called back may be a function of one side only. Loops are rolled where instructions cost more than jumps.
#if defined(__CUDACC__)
#define FASTCONV_HOST_DEVICE_CALLER                      \
  _Pragma("nv_exec_check_disable") template <typename F> \
  FASTCONV_HOST_DEVICE
#define FASTCONV_ROLLED _Pragma("unroll 1")
#else
#define FASTCONV_HOST_DEVICE_CALLER \
  template <typename F>             \
  FASTCONV_HOST_DEVICE
#define FASTCONV_ROLLED
#endif
