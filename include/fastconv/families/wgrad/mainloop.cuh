// Consumer of the weight gradient: one warpgroup multiplies its units by 64 filters each over all pixels of its tiles.
#pragma once

#include "fastconv/families/wgrad/walk.cuh"
#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

// Sums of float32 tensors. NOTES: the tensor cores truncate what they add to, by about 2.2e-8 of it an instruction, so
// that now and then it moves into registers that ordinary additions add up. The smallest products, which come first,
// have no need of it, the next ones less.
template <bool kPromotes, Operand kOperand, int kUnits, int kAccumulators>
struct Promotion {
  static constexpr int kNever = 0x7fffffff, kSmallProducts = 8;
  int period, left = kNever;  // step pairs to the next one
  float weight;               // of products, see split_scale()
  float sums[kUnits][kAccumulators] = {};

  __device__ __forceinline__ explicit Promotion(const WgradParams& params) {
    weight = 1;
    for (int part = 1; part < params.parts; ++part) weight /= split_scale(params.parts, kOperand);
  }
  // The accumulators are done with the products of one size.
  __device__ __forceinline__ void begin(const WgradParams& params, bool largest, float (&acc)[kUnits][kAccumulators]) {
    add(acc);
    if (weight != 1) make_all_finite(sums);
    weight *= split_scale(params.parts, kOperand);
    left = period = (largest ? 1 : kSmallProducts) * params.promotion;
  }
  // Those of all sizes are, to begin with, and sums of them have the scale of the largest.
  __device__ __forceinline__ void begin_all(const WgradParams& params) { weight = 1, left = period = params.promotion; }
  // Asked once a step pair.
  __device__ __forceinline__ bool is_due() {
    const bool due = left == 0;
    left = (due ? period : left) - 1;
    return due;
  }
  __device__ __forceinline__ void add(float (&acc)[kUnits][kAccumulators]) {
    if (weight != 1) make_all_finite(acc);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) sums[u][i] += weight * acc[u][i];
    }
  }
  // From products of one size to the next larger ones.
  static __device__ __forceinline__ void shrink(float (&acc)[kUnits][kAccumulators]) {
    make_all_finite(acc);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) {
        acc[u][i] *= 1 / split_scale(kOperand == Operand::kFp16 ? 2 : kMaxSplitParts, kOperand);
      }
    }
  }
  __device__ __forceinline__ void end(float (&acc)[kUnits][kAccumulators]) {
    add(acc);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) acc[u][i] = sums[u][i];
    }
  }

 private:
  static __device__ __forceinline__ void make_all_finite(float (&acc)[kUnits][kAccumulators]) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kAccumulators; ++i) make_finite(acc[u][i]);
    }
  }
};
template <Operand kOperand, int kUnits, int kAccumulators>
struct Promotion<false, kOperand, kUnits, kAccumulators> {
  __device__ __forceinline__ explicit Promotion(const WgradParams&) {}
  __device__ __forceinline__ void begin(const WgradParams&, bool, float (&)[kUnits][kAccumulators]) {}
  __device__ __forceinline__ bool is_due() { return false; }
  __device__ __forceinline__ void add(float (&)[kUnits][kAccumulators]) {}
  __device__ __forceinline__ void end(float (&)[kUnits][kAccumulators]) {}
};

template <typename T, int kChannels, int kBlocks, int kUnits, WgradStaging kStaging, OperandForm kOperands>
struct WgradMainloop {
  static constexpr bool kSplit = has_parts(kOperands);
  static constexpr int kN = kChannels * kBlocks;
  static constexpr int kAccumulators = kN / 2;  // of one unit, per thread
  static constexpr bool kXPixelRows = x_has_pixel_rows(kStaging), kYPixelRows = y_has_pixel_rows(kStaging);
  static constexpr ptx::Major kXMajor = kXPixelRows ? ptx::Major::kK : ptx::Major::kMn;
  static constexpr ptx::Major kYMajor = kYPixelRows ? ptx::Major::kK : ptx::Major::kMn;

  // NOTES: accumulators are cleared by the first wgmma's scale-d: zeroing registers makes ptxas serialise the loop
  // (C7515). A stage is released one step pair late, when the wgmmas that read it are known to be done.
  static __device__ __forceinline__ void run(const WgradParams& params, const WgradShare& share, int first_slot,
                                             Ring& ring, bool elected, float (&acc)[kUnits][kAccumulators]) {
    const WgradJob& job = share.job;
    const WgradTapGroup& group = params.tap_group[job.tap_group];
    const int x_row_bytes = 2 * (kXPixelRows ? params.tile_q : kChannels);
    const int y_row_bytes = 2 * (kYPixelRows ? params.tile_q : 64);
    const uint32_t x_high = ptx::descriptor_high(params.x_group_pitch, ptx::swizzle_of(x_row_bytes));
    const uint32_t y_high = ptx::descriptor_high(params.y_group_pitch, ptx::swizzle_of(y_row_bytes));
    uint32_t x_low[kUnits], y_low[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      int m_block, index;
      params.units_per_m_block.divmod(first_slot + u, m_block, index);
      // A slot left over repeats the last unit.
      const WgradUnit& unit = params.unit[min(group.unit_begin + index, group.unit_end - 1)];
      x_low[u] = ptx::descriptor_low(unit.start * 16, unit.step * 16);
      if constexpr (kStaging == WgradStaging::kTmaRows) {  // filters whose rows lie further left
        const int phase = params.rows.filter_phase(job.k_job * params.m_blocks + m_block) << params.rows.row_log2;
        x_low[u] -= params.rows.shift[phase] * kChannels / 8;
      }
      y_low[u] = ptx::descriptor_low(params.y_offset + m_block * params.y_block_bytes, 0);
    }

    int accumulate = 0;
    uint32_t done = 0;  // barrier to arrive on after the next wait
    Promotion<promotes(kOperands), operand_of(kOperands), kUnits, kAccumulators> promotion(params);
    const int products = kSplit ? params.products : 1;
    for (int product = 0; product < products; ++product) {
      if (kSplit && product > 0 && SplitProduct(params.parts, product).is_first()) {
        ptx::wgmma_wait<0>();
        promotion.begin(params, product == products - 1, acc);
        accumulate = 0;
      }
      for (int t = share.split; t < params.tiles; t += params.splits) {
        ring.wait_full();
        const uint32_t stage = ptx::descriptor_low(ring.stage(), 0);
        for (int pair = 0; pair < params.step_pairs; ++pair) {
          if (promotion.is_due()) {
            ptx::wgmma_wait<0>();
            promotion.add(acc);
            accumulate = 0;
          }
          ptx::wgmma_fence();
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const WgradStep step = params.step[2 * pair + k];
            const uint32_t x = stage + step.x, y = stage + step.y;
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
              ptx::wgmma<T, kYMajor, kXMajor>(acc[u], ptx::descriptor(y_low[u] + y, y_high),
                                              ptx::descriptor(x_low[u] + x, x_high), k == 0 ? accumulate : 1);
            }
          }
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();
          if (elected && done != 0) ptx::mbarrier_arrive(done);
          done = 0;
          accumulate = 1;
        }
        done = ring.empty();
        ring.next();
      }
    }
    ptx::wgmma_wait<0>();
    promotion.end(acc);
  }
};

}  // namespace fastconv
