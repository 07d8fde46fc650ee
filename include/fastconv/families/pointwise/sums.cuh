// What a block adds up: the products of its stages, and of float32 in parts a second set of sums that they move to.
#pragma once

#include "fastconv/families/pointwise/config.h"
#include "fastconv/tile/operand_scale.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

template <OperandForm kOperands, typename Sums>
struct PointwiseSums {
  Sums products = {};

  __device__ __forceinline__ explicit PointwiseSums(int32_t) {}
  __device__ __forceinline__ void end_stage() {}
  __device__ __forceinline__ Sums& total() { return products; }
};

// Products of small parts come first, each of so many stages; what they add up to shrinks as larger ones follow.
template <OperandForm kOperands, typename Sums>
  requires(has_parts(kOperands))
struct PointwiseSums<kOperands, Sums> {
  static constexpr int kParts = value_parts(kOperands), kProducts = split_products(kParts);
  static constexpr float kScale = split_scale(kParts, operand_of(kOperands));
  Sums products = {}, promoted = {};
  int32_t stages, left, product = 0, since = 0;

  __device__ __forceinline__ explicit PointwiseSums(int32_t stages) : stages(stages), left(stages) {}
  __device__ __forceinline__ void end_stage() {
    --left, ++since;
    if (product + 1 == kProducts) {
      if (left == 0 || since == stages_of_promotion(kOperands)) promote();
    } else if (left == 0) {
      left = stages, ++product, since = 0;
      if (kScale != 1 && SplitProduct(kParts, product).is_first()) shrink();
    }
  }
  __device__ __forceinline__ Sums& total() { return promoted; }

 private:
  static constexpr int kRows = sizeof(Sums) / sizeof(products[0]), kColumns = sizeof(products[0]) / sizeof(float);

  __device__ __forceinline__ void shrink() {
#pragma unroll
    for (int i = 0; i < kRows * kColumns; ++i) {
      float& sum = products[i / kColumns][i % kColumns];
      make_finite(sum);
      sum *= 1 / kScale;
    }
  }
  __device__ __forceinline__ void promote() {
    since = 0;
#pragma unroll
    for (int i = 0; i < kRows * kColumns; ++i) {
      float& sum = products[i / kColumns][i % kColumns];
      promoted[i / kColumns][i % kColumns] += sum;
      sum = 0;
    }
  }
};

}  // namespace fastconv
