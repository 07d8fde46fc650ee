// The halo engine's filter, packed for it where the copy engine cannot read it as it is.
#pragma once

#include <cuda_runtime_api.h>

#include "fastconv/tile/packed_filter.cuh"

namespace fastconv {

void launch_pack_filter(const char* name, const HaloParams& params, const PackParams& pack, cudaStream_t stream);

void launch_pack_folded_filter(const char* name, const HaloParams& params, const PackParams& pack, const Fold& fold,
                               cudaStream_t stream);

}  // namespace fastconv
