// Brings one operand's tile of a matrix product from global memory through registers into shared memory.
#pragma once

#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

// How an operand is read. A row is an output of the product (a pixel, a filter), the depth is its reduction.
template <bool kRows, int kWidth, bool kPadded>
struct OperandAccess {
  static constexpr bool kAlongRows = kRows;  // else along the depth: neighbouring lanes take neighbouring elements
  static constexpr int kVector = kWidth;     // elements in one access, all on that axis
  static constexpr bool kGather = kPadded;   // h and w of its Coords are to be checked against the image
};

// Whether the element of a row and a depth is one of the tensor.
template <typename Access>
__device__ __forceinline__ bool exists(const Coord& a, const Coord& b, int32_t extent_h, int32_t extent_w) {
  if constexpr (Access::kGather) {
    return static_cast<uint32_t>(a.h + b.h) < static_cast<uint32_t>(extent_h) &&
           static_cast<uint32_t>(a.w + b.w) < static_cast<uint32_t>(extent_w);
  } else {
    return a.h + b.h >= 0;
  }
}

// Shared memory holds depth slices, each of all rows, in the accumulator's type, padded by one access so that stores
// along the depth meet at most two to a bank.
template <typename Acc, int kRows, int kDepth>
struct OperandTile {
  static constexpr int kPitch = kRows + 16 / sizeof(Acc);
  Acc data[kDepth][kPitch];
};

template <typename T, typename Access, int kRows, int kDepth, int kThreads>
class OperandLoader {
  using Acc = Accumulator<T>;
  static constexpr int kVector = Access::kVector;
  static constexpr int kLanes = (Access::kAlongRows ? kRows : kDepth) / kVector;
  static constexpr int kLoads = (kRows * kDepth / kVector + kThreads - 1) / kThreads;
  static constexpr bool kIdleThreads = kRows * kDepth / kVector < kThreads;
  // Threads stand on kLanes x kStride positions; each keeps its position along the lanes, in kSlots pieces if there are
  // more lanes than threads, and steps along the other axis.
  static constexpr int kSlots = kLanes > kThreads ? kLanes / kThreads : 1;
  static constexpr int kStride = kLanes > kThreads ? 1 : kThreads / kLanes;

 public:
  // `rows`: Coords of the tile's rows, in shared memory.
  __device__ OperandLoader(const T* source, const Coord* rows, int32_t extent_h, int32_t extent_w)
      : source_(source), rows_(rows), extent_h_(extent_h), extent_w_(extent_w) {
    if constexpr (Access::kAlongRows) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        fixed_[slot] = rows[(lane() + slot * kThreads) * kVector];
      }
    }
  }

  // `depth`: Coords of this step's depth slices, in shared memory.
  __device__ void load(const Coord* depth) {
    if (kIdleThreads && threadIdx.x >= kRows * kDepth / kVector) return;
    if constexpr (!Access::kAlongRows) fixed_[0] = depth[lane() * kVector];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const Coord fixed = fixed_[i % kSlots];
      const Coord other = Access::kAlongRows ? depth[across(i)] : rows_[across(i)];
      staged_[i] =
          inside(fixed, other) ? *reinterpret_cast<const Staged*>(source_ + fixed.offset + other.offset) : Staged{};
    }
  }

  __device__ void store(OperandTile<Acc, kRows, kDepth>& tile) const {
    if (kIdleThreads && threadIdx.x >= kRows * kDepth / kVector) return;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int first = (lane() + i % kSlots * kThreads) * kVector;
      if constexpr (Access::kAlongRows) {
        Vector<Acc, kVector> wide;
#pragma unroll
        for (int v = 0; v < kVector; ++v) wide.data[v] = widen(staged_[i].data[v]);
        *reinterpret_cast<Vector<Acc, kVector>*>(&tile.data[across(i)][first]) = wide;
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) tile.data[first + v][across(i)] = widen(staged_[i].data[v]);
      }
    }
  }

 private:
  using Staged = Vector<T, kVector>;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int across(int i) { return static_cast<int>(threadIdx.x) / kLanes + i / kSlots * kStride; }

  __device__ bool inside(const Coord& a, const Coord& b) const { return exists<Access>(a, b, extent_h_, extent_w_); }

  const T* source_;
  const Coord* rows_;
  int32_t extent_h_, extent_w_;
  Coord fixed_[kSlots];
  Staged staged_[kLoads];
};

}  // namespace fastconv
