// A ring of shared-memory stages between producers and consumers. Each stage has a barrier for "full" and one for
// "empty"; both sides walk it in the same order.
#pragma once

#include "fastconv/core/fast_divmod.h"
#include "fastconv/ptx/mbarrier.cuh"

namespace fastconv {

struct Ring {
  uint32_t barriers, data;  // shared-memory addresses
  int32_t stage_bytes, stages;
  int32_t index = 0;
  uint32_t parity = 0;
  bool settled = false;  // all stages have been waited for, and stay

  __device__ uint32_t full() const { return barriers + 16 * index; }
  __device__ uint32_t empty() const { return barriers + 16 * index + 8; }
  __device__ uint32_t stage() const { return data + index * stage_bytes; }

  // One of `parts` rings.
  __device__ Ring part(int which, int parts) const {
    Ring ring = *this;
    ring.stages /= parts;
    ring.barriers += 16 * which * ring.stages;
    ring.data += which * ring.stages * stage_bytes;
    return ring;
  }
  // All warps of the block, each its share. NOTES: one after the other by one warp shows in short kernels.
  __device__ void init(int warp, int warps, int lane, int full_arrivals, int empty_arrivals) const {
    if (lane != 0) return;
    for (int i = warp; i < stages; i += warps) {
      ptx::mbarrier_init(barriers + 16 * i, full_arrivals);
      ptx::mbarrier_init(barriers + 16 * i + 8, empty_arrivals);
    }
  }
  __device__ void wait_full() const {
    if (!settled) ptx::mbarrier_wait(full(), parity);
  }
  __device__ void wait_empty() const {
    ptx::mbarrier_wait(empty(), parity ^ 1);
  }  // passes at once the first time round
  // Until all consumers have left the stage, once it was full.
  __device__ void wait_left() const { ptx::mbarrier_wait(empty(), parity); }
  __device__ void next() {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
  __device__ Ring previous() const {
    Ring ring = *this;
    ring.parity ^= index == 0;
    ring.index = (index == 0 ? stages : index) - 1;
    return ring;
  }
  // By at most a round.
  __device__ void advance(int count) {
    index += count;
    if (index >= stages) {
      index -= stages;
      parity ^= 1;
    }
  }
  // By any number. `rounds`: of the ring's stages.
  __device__ void skip(int count, const FastDivmod& rounds) {
    int32_t passed;
    rounds.divmod(index + count, passed, index);
    parity ^= passed & 1;
  }
};

}  // namespace fastconv
