// What becomes of a kernel's sums before they are rounded and stored, the same in all kernels and nowhere else.
#pragma once

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/epilogue.h"

namespace fastconv {

// Of one filter, or of none. Small, so that it may lie in registers or in shared memory.
template <typename Sum>
struct FilterEpilogue {
  Sum bias;

  __device__ __forceinline__ Sum operator()(Sum sum) const { return sum + bias; }
};

template <typename T>
struct Epilogue {
  using OfFilter = FilterEpilogue<Accumulator<T>>;

  const T* bias;  // null if there is none

  __device__ __forceinline__ bool does_nothing() const { return bias == nullptr; }

  // Of one that does not exist nothing is read.
  __device__ __forceinline__ OfFilter of(int64_t filter, bool exists = true) const {
    return {bias != nullptr && exists ? widen(bias[filter]) : Accumulator<T>{0}};
  }
};

// A table of filters' in shared memory.
static_assert(sizeof(FilterEpilogue<float>) == kStagedEpilogueBytes);

__device__ __forceinline__ void stage_epilogue(uint32_t table, int32_t filter, const FilterEpilogue<float>& epilogue) {
  ptx::store_shared_float(table + filter * kStagedEpilogueBytes, epilogue.bias);
}
__device__ __forceinline__ FilterEpilogue<float> staged_epilogue(uint32_t table, int32_t filter) {
  return {__uint_as_float(ptx::load_shared4(table + filter * kStagedEpilogueBytes))};
}

}  // namespace fastconv
