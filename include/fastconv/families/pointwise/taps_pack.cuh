// Tensors in the workspace as the kernels of several taps read them: chunks of neighbouring channels.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/operand_scale.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

inline constexpr int kPackThreads = 128;
inline constexpr int kPackBytes = kPackThreads / 32 * kSplitBytes;  // of shared memory

struct TapPacking {
  Split source, other;  // no units: of what is read as it lies
  RangeGate gate;
};

template <typename T, Operand kOperand>
__global__ void __launch_bounds__(kPackThreads) pack_taps(const __grid_constant__ TapPacking packing) {
#if __CUDA_ARCH__ >= 750
  // Turing has no conversions of pairs, nor kernels that read them.
  if constexpr (__CUDA_ARCH__ >= 800 || !std::is_same_v<T, float>) {
    constexpr int kWarps = kPackThreads / 32;
    extern __shared__ uint4 pack_smem[];
    ptx::follow_previous_kernel();
    if (is_closed(packing.gate)) return;
    const auto thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const uint32_t buffer = ptx::smem_address(pack_smem) + warp * kSplitBytes;
    split_to_rows<kOperand, T>(packing.source, buffer, warp, kWarps, lane);
    split_to_rows<kOperand, T>(packing.other, buffer, warp, kWarps, lane);
  }
#endif
}

}  // namespace fastconv
