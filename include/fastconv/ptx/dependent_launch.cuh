// Programmatic dependent launch (PTX ISA, "griddepcontrol"): on Hopper and later every kernel is started while the one
// before it ends, see launch/launch.cuh, and waits for it here before it touches memory.
#pragma once

namespace fastconv::ptx {

// The next kernel may be started once all blocks of this one are here; then waits until the kernels before this one
// have ended and what they wrote can be seen. All of memory is theirs up to there, what they only read too. NOTES: what
// they wrote must not be read through the cache of what never changes (__ldg).
__device__ __forceinline__ void follow_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace fastconv::ptx
