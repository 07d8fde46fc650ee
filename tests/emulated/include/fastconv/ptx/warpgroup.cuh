// Emulated: see the header that this one hides.
#pragma once

#include "emulated/cuda.h"

namespace fastconv::ptx {

template <int kRegisters>
void release_registers() {}
template <int kRegisters>
void acquire_registers() {}

using emulated::barrier_arrive;
using emulated::barrier_sync;
template <int kThreads>
void barrier_sync(int barrier) {
  barrier_sync(barrier, kThreads);
}
template <int kThreads>
void barrier_arrive(int barrier) {
  barrier_arrive(barrier, kThreads);
}

inline int lane() { return static_cast<int>(threadIdx.x % 32); }
inline float shuffle(float value, int lane) { return __shfl_sync(~0u, value, lane); }

template <typename F>
uint32_t reduce(uint32_t value, F&& f) {
  for (int lanes = 1; lanes < 32; lanes *= 2) value = f(value, __shfl_xor_sync(~0u, value, lanes));
  return value;
}
inline uint32_t reduce_max(uint32_t value) {
  return reduce(value, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
inline uint32_t reduce_add(uint32_t value) {
  return reduce(value, [](uint32_t a, uint32_t b) { return a + b; });
}

}  // namespace fastconv::ptx
