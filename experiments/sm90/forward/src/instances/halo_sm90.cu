// One configuration of the halo engine; the build compiles this file once for each line of the .def and dtype.
#include "fastconv/launch/halo_sm90.cuh"

namespace fastconv {
template cudaError_t launch_halo<HALO_T, HALO_K, HALO_M, HALO_C, HaloStaging::HALO_S, FilterTile::HALO_F>(
    const HaloPlan&, const HaloParams&, const PackParams&, const CUtensorMap&, const CUtensorMap&, cudaStream_t);
}
