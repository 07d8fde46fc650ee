#include "fastconv/launch/pack_filter.h"

#include "fastconv/kernels/pack_filter.cuh"
#include "fastconv/launch/launch.cuh"

namespace fastconv {

void launch_pack_filter(const char* name, const HaloParams& params, const PackParams& pack, int channels, int64_t tiles,
                        cudaStream_t stream) {
  const auto kernel = channels == 64 ? pack_filter<64> : channels == 32 ? pack_filter<32> : pack_filter<16>;
  const int64_t grid = tiles * (pack.block_k / kPackRows) * params.c_blocks;
  launch(name, kernel, grid, kPackThreads, 0, stream, params, pack);
}

}  // namespace fastconv
