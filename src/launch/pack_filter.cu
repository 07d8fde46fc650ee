#include "fastconv/launch/pack_filter.h"

#include "fastconv/kernels/pack_filter.cuh"
#include "fastconv/launch/launch.cuh"

namespace fastconv {

void launch_pack_filter(const char* name, const HaloParams& params, const PackParams& pack, cudaStream_t stream) {
  launch(name, pack_filter, pack.blocks, kPackThreads, pack_bytes(pack), stream, params, pack);
}

void launch_pack_folded_filter(const char* name, const HaloParams& params, const PackParams& pack, const Fold& fold,
                               cudaStream_t stream) {
  launch(name, pack_folded_filter, pack.blocks, kPackThreads, 0, stream, params, pack, fold);
}

}  // namespace fastconv
