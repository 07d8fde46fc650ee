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

}  // namespace fastconv::ptx
