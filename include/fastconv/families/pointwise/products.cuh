// A warpgroup's products of a stage: by wgmma, or by the warps' own products, as of float32, which is rounded on its
// way, and of tiles of fewer than 64 rows.
#pragma once

#include "fastconv/families/pointwise/operand.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/wgmma.cuh"

namespace fastconv {

inline constexpr bool kHasWgmma =
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    true;
#else
    false;
#endif

// Where a lane's sums lie in the tile: four of each product of 16x8, in two rows and two columns. Fours: where lanes
// read rows of an operand in fours, see PointwiseFragments.
template <int kTileM, int kTileN, bool kWgmma, bool kFoursM, bool kFours>
struct PointwiseWarp {
  static constexpr int kWarpsM = kWgmma || kTileN == 32 ? 4 : kTileM == 32 ? 1 : 2;
  static constexpr int kWarpsN = kPointwiseThreads / 32 / kWarpsM;
  static constexpr int kM = kTileM / kWarpsM, kN = kTileN / kWarpsN;
  static constexpr bool kFoursN = kFours;
  using Sums = float[kM / 16][kN / 2];  // [16 rows][8 columns, row, column]

  const int m = static_cast<int>(threadIdx.x) / 32 / kWarpsN * (kWgmma ? 16 : kM);
  const int n = static_cast<int>(threadIdx.x) / 32 % kWarpsN * kN;

  // Of a product's rows, the first or the second of the lane.
  __device__ __forceinline__ int row(int product, int second, int lane) const {
    const int within = kFoursM  ? product / 2 * 32 + lane / 4 * 4 + product % 2 * 2 + second
                       : kWgmma ? 64 * product + 8 * second + lane / 4
                                : 16 * product + 8 * second + lane / 4;
    return m + within;
  }
  // Of two of a product's columns, the first or the second.
  __device__ __forceinline__ int column(int product, int second, int lane) const {
    return n +
           (kFoursN ? product / 4 * 32 + lane % 4 * 8 + second * 4 + product % 4 : 8 * product + lane % 4 * 2 + second);
  }
};

template <typename T, bool kRowsA, bool kRowsB, int kM, int kN, bool kWgmma>
struct PointwiseProducts {
  using Warp = PointwiseWarp<kM, kN, kWgmma, kPointwiseFours<T, kRowsA>, kPointwiseFours<T, kRowsB>>;
  using StageA = PointwiseStage<T, kRowsA, kM>;
  using StageB = PointwiseStage<T, kRowsB, kN>;
  static constexpr int kSteps = kPointwiseDepthBytes / kPointwiseStepBytes;
  static constexpr bool kAsync = kWgmma;

  // Before threads meet: what copies of this one brought may then be read.
  static __device__ __forceinline__ void publish_copies() {
    if constexpr (kWgmma) ptx::async_proxy_fence();
  }
  // All products have been formed.
  static __device__ __forceinline__ void wait() {
    if constexpr (kWgmma) ptx::wgmma_wait<0>();
  }

  // Starts to add a stage's to the sums, or to nothing.
  static __device__ __forceinline__ void start(uint32_t stage, const Warp& warp, typename Warp::Sums& sums, bool add) {
    if constexpr (kWgmma) {
      start_wgmma(stage, sums, add);
    } else {
      multiply(stage, warp, sums);
    }
  }

 private:
  template <typename Stage>
  static __device__ __forceinline__ uint64_t descriptor(uint32_t stage, int block, int step, bool along_rows) {
    const int bytes = along_rows ? block * Stage::kBlockBytes + step * 16 * Stage::kLineBytes
                                 : block * 64 * Stage::kLineBytes + step * kPointwiseStepBytes;
    return ptx::descriptor(ptx::descriptor_low(stage + bytes, along_rows ? Stage::kBlockBytes : 16),
                           ptx::descriptor_high(8 * Stage::kLineBytes, ptx::swizzle_of(Stage::kLineBytes)));
  }
  static __device__ __forceinline__ void start_wgmma(uint32_t stage, typename Warp::Sums& sums, bool add) {
    constexpr ptx::Major kA = kRowsA ? ptx::Major::kMn : ptx::Major::kK;
    constexpr ptx::Major kB = kRowsB ? ptx::Major::kMn : ptx::Major::kK;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t columns = descriptor<StageB>(stage + StageA::kBytes, 0, step, kRowsB);
#pragma unroll
      for (int i = 0; i < kM / 64; ++i) {
        ptx::wgmma<T, kA, kB>(sums[i], descriptor<StageA>(stage, i, step, kRowsA), columns, step > 0 || add);
      }
    }
    ptx::wgmma_commit();
  }
  static __device__ __forceinline__ void multiply(uint32_t stage, const Warp& warp, typename Warp::Sums& sums) {
    const PointwiseFragments<T, kRowsA, false, kM> load_rows(warp.m);
    const PointwiseFragments<T, kRowsB, true, kN> load_columns(warp.n);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t rows[Warp::kM / 32][2][4], columns[Warp::kN / 32][2][4];
#pragma unroll
      for (int i = 0; i < Warp::kM / 32; ++i) {
        load_rows.load(stage, i, step, rows[i]);
      }
#pragma unroll
      for (int j = 0; j < Warp::kN / 32; ++j) {
        load_columns.load(stage + StageA::kBytes, j, step, columns[j]);
      }
#pragma unroll
      for (int i = 0; i < Warp::kM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < Warp::kN / 8; ++j) {
          auto& sum = *reinterpret_cast<float (*)[4]>(&sums[i][4 * j]);
          const auto& words = columns[j / 4][j % 4 / 2];
          ptx::mma(T{}, sum, rows[i / 2][i % 2], words[j % 2 * 2], words[j % 2 * 2 + 1]);
        }
      }
    }
  }
};

}  // namespace fastconv
