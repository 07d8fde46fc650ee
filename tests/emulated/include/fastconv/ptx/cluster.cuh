// Emulated: see the header that this one hides.
#pragma once

#include <cstring>

#include "emulated/cuda.h"

namespace fastconv::ptx {

using emulated::cluster_sync;
inline uint32_t cluster_rank() { return static_cast<uint32_t>(emulated::cluster_rank()); }
inline float4 cluster_load(uint32_t smem, uint32_t rank) {
  float4 v;
  std::memcpy(&v, emulated::shared(smem, 16, static_cast<int>(rank)), 16);
  return v;
}

}  // namespace fastconv::ptx
