// Emulated: see the header that this one hides.
#pragma once

#include "emulated/cuda.h"
#include "fastconv/ptx/shared_memory.cuh"

namespace fastconv::ptx {

using emulated::mbarrier_arrive;
using emulated::mbarrier_expect;
using emulated::mbarrier_init;
using emulated::mbarrier_invalidate;
using emulated::mbarrier_wait;

inline void mbarrier_init_fence() {}
inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  mbarrier_expect(barrier, bytes);
  mbarrier_arrive(barrier);
}

}  // namespace fastconv::ptx
