// One configuration of the weight gradient; the build compiles this file once for each line of the .def and dtype.
#include "fastconv/launch/wgrad_sm90.cuh"

namespace fastconv {
template cudaError_t launch_wgrad<WGRAD_T, WGRAD_C, WGRAD_B, WGRAD_U, WGRAD_W, WgradStaging::WGRAD_S>(
    const WgradPlan&, const WgradParams&, const CUtensorMap&, const CUtensorMap&, cudaStream_t);
}
