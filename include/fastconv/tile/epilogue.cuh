// What becomes of a kernel's sums before they are rounded and stored, the same in all kernels and nowhere else.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/activation.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/epilogue.h"

namespace fastconv {

// Of one filter, or of none. Small, so that it may lie in registers.
template <typename Sum>
struct FilterEpilogue {
  Sum bias;
  Bounds<Sum> bounds;

  __device__ __forceinline__ Sum operator()(Sum sum) const { return bounds(sum + bias); }
};

template <typename T>
struct Epilogue {
  using OfFilter = FilterEpilogue<Accumulator<T>>;

  const void* bias = nullptr;  // null if there is none
  bool wide_bias = false;      // in the type of sums
  Bounds<Accumulator<T>> bounds;

  Epilogue() = default;
  FASTCONV_HOST_DEVICE explicit Epilogue(const EpilogueParams& params)
      : bias(params.bias), wide_bias(params.wide_bias), bounds(params.activation) {}

  __device__ __forceinline__ bool does_nothing() const { return bias == nullptr && !bounds.cut(); }

  // Of one that does not exist nothing is read.
  __device__ __forceinline__ OfFilter of(int64_t filter, bool exists = true) const {
    using Acc = Accumulator<T>;
    if (bias == nullptr || !exists) return {Acc{0}, bounds};
    return {wide_bias ? static_cast<const Acc*>(bias)[filter] : widen(static_cast<const T*>(bias)[filter]), bounds};
  }
};

// Of a tile's filters, in shared memory.
template <typename Sum, int kFilters>
struct EpilogueTable {
  Sum bias[kFilters];
  Bounds<Sum> bounds;  // one thread sets them

  __device__ __forceinline__ void set(int filter, const FilterEpilogue<Sum>& of) { bias[filter] = of.bias; }
  __device__ __forceinline__ FilterEpilogue<Sum> operator()(int filter) const { return {bias[filter], bounds}; }
};

// A table of any size.
__device__ __forceinline__ void stage_epilogue(uint32_t table, int32_t filter, const FilterEpilogue<float>& epilogue) {
  static_assert(sizeof(epilogue.bias) == kStagedEpilogueBytes);
  ptx::store_shared_float(table + filter * kStagedEpilogueBytes, epilogue.bias);
}
__device__ __forceinline__ FilterEpilogue<float> staged_epilogue(uint32_t table, int32_t filter,
                                                                 const Bounds<float>& bounds) {
  return {__uint_as_float(ptx::load_shared4(table + filter * kStagedEpilogueBytes)), bounds};
}

}  // namespace fastconv
