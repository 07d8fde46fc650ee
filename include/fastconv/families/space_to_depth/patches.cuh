// Moves the patches of an image to the workspace, one next to the other, or from there back to the image.
#pragma once

#include <cstdint>
#include <cstring>

#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

inline constexpr int kPatchBlocksPerSm = 4;  // 64 registers a thread

// T has the elements' size; nothing is computed with them. All loads of a lane are on their way before it stores.
template <typename T, int kVector, PatchLayout kLayout>
__global__ void __launch_bounds__(kPatchThreads, kPatchBlocksPerSm)
    gather_patches(const __grid_constant__ Patches patches, const T* image, T* to) {
  ptx::follow_previous_kernel();
  using Word = Words<sizeof(T) * kVector>;
  const auto unit = static_cast<int32_t>(blockIdx.x * (kPatchThreads / 32) + threadIdx.x / 32);
  if (unit >= patches.units) return;
  const PatchLane<kLayout> lane(patches, unit, static_cast<int>(threadIdx.x % 32));
  Word words[kPatchSteps];
  T* places[kPatchSteps];
#pragma unroll
  for (int step = 0; step < kPatchSteps; ++step) {
    const PatchPlace at = lane.place(step);
    places[step] = at.in_patches ? to + at.patches : nullptr;
    if (at.in_patches) words[step] = *reinterpret_cast<const Word*>(image + at.image);
  }
#pragma unroll
  for (int step = 0; step < kPatchSteps; ++step) {
    if (places[step] == nullptr) continue;
    if constexpr (kLayout == PatchLayout::kRows) {
      *reinterpret_cast<Word*>(places[step]) = words[step];
    } else {
      T elements[kVector];
      memcpy(elements, &words[step], sizeof(Word));
#pragma unroll
      for (int i = 0; i < kVector; ++i) places[step][i * patches.patches_channel] = elements[i];
    }
  }
}

// What the image has beyond its last whole patches, or where no tap meets it, becomes zero.
template <typename T, int kVector>
__global__ void __launch_bounds__(kPatchThreads, kPatchBlocksPerSm)
    scatter_patches(const __grid_constant__ Patches patches, const T* from, T* image) {
  ptx::follow_previous_kernel();
  using Word = Words<sizeof(T) * kVector>;
  const auto unit = static_cast<int32_t>(blockIdx.x * (kPatchThreads / 32) + threadIdx.x / 32);
  if (unit >= patches.units) return;
  const PatchLane<PatchLayout::kRows> lane(patches, unit, static_cast<int>(threadIdx.x % 32));
  Word words[kPatchSteps];
  T* places[kPatchSteps];
#pragma unroll
  for (int step = 0; step < kPatchSteps; ++step) {
    const PatchPlace at = lane.place(step);
    places[step] = at.in_image ? image + at.image : nullptr;
    words[step] = {};
    if (at.in_patches) words[step] = *reinterpret_cast<const Word*>(from + at.patches);
  }
#pragma unroll
  for (int step = 0; step < kPatchSteps; ++step) {
    if (places[step] != nullptr) *reinterpret_cast<Word*>(places[step]) = words[step];
  }
}

}  // namespace fastconv
