// Programmatic dependent launch (PTX ISA, "griddepcontrol"): on Hopper and later every kernel is started while the one
// before it ends, see launch/launch.cuh, and waits for it here before it touches memory.
#pragma once

namespace fastconv::ptx {

// Waits until the kernels before this one have ended and what they wrote can be seen. All of memory is theirs up to
// there, what they only read too. NOTES: what they wrote must not be read through the cache of what never changes
// (__ldg). No block says that the next kernel may start (griddepcontrol.launch_dependents): it may as soon as all have
// exited. Were it earlier, its blocks would crowd where this one's leave room first, several on some multiprocessors
// and none on others (bench/micro/dependent_launch.cu).
__device__ __forceinline__ void follow_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace fastconv::ptx
