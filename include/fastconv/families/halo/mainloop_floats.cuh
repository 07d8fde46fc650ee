// Consumer of HaloStaging::kFloats: a warpgroup makes operands of float32 planes in registers, in as many parts as the
// filter has, and multiplies its M-blocks by every filter tap of every channel block of a tile.
#pragma once

#include "fastconv/families/halo/mainloop.cuh"
#include "fastconv/families/halo/walk.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

// How a lane finds its values of fragments.
template <int kDepth, int kChannels>
struct FloatLoader {
  using Fragment = FloatFragment<kDepth>;
  using Values = float[2][Fragment::kValues];  // of two fragments

  const HaloParams& params;
  Fragment fragment;
  int32_t channel_bytes, row_bytes;
  FloatPlace pixel;  // of this lane in an M-block

  __device__ explicit FloatLoader(const HaloParams& params)
      : params(params),
        fragment(threadIdx.x % 128 / 32, threadIdx.x % 32),
        channel_bytes(4 * params.raw.box_w),
        row_bytes(kChannels * channel_bytes),
        pixel(float_pixel(params, fragment.pixel)) {}

  // Of the halo place that an M-block's first pixel, shifted by the tap, has, and the stage's channels from kDepth * k
  // on. kOneRow: the M-block's pixels are of one row.
  template <bool kOneRow>
  __device__ __forceinline__ void load(uint32_t stage, const FloatRows& rows, int row, int column, int k,
                                       float (&v)[Fragment::kValues]) const {
    stage += (k * kDepth + fragment.channel) * channel_bytes;
    uint32_t at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // its pixels are of two groups
      const int r = row + (kOneRow ? 0 : pixel.row + half * params.group_p);
      at[half] = stage + r * row_bytes + 4 * (column + pixel.column + half * params.group_q + rows.lead(r));
    }
#pragma unroll
    for (int i = 0; i < Fragment::kValues; ++i) {
      v[i] = __uint_as_float(ptx::load_shared4(at[Fragment::pixels(i) / 8] + Fragment::channels(i) * channel_bytes));
    }
  }
};

// Two fragments in kParts of T.
template <typename T, int kParts>
struct FloatOperands {
  uint32_t part[kParts][2][4];

  // `scale`: of fp16.
  template <int kValues>
  __device__ __forceinline__ void make(const float (&v)[2][kValues], float scale) {
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < 8; ++i) part[0][i / 4][i % 4] = __float_as_uint(v[i / 4][i % 4]);  // rounded as it was copied
    } else {
      float all[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) all[i] = v[i / 8][i % 8];
      auto parts = parts_of<kOperandOf<T>>(all, scale);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        uint32_t words[8];
        parts.take(p, kParts, words);
#pragma unroll
        for (int i = 0; i < 8; ++i) part[p][i / 4][i % 4] = words[i];
      }
    }
  }
};

// Three filter columns lie side by side on N or none. If they do, so do three filter rows in time: a row of the halo is
// multiplied by all of them, for as many rows of M-blocks, as soon as it is an operand.
template <typename T, int kBlockK, int kMBlocks, int kChannels, int kColumns, OperandForm kOperands>
struct FloatsMainloop {
  static constexpr int kParts = parts_a_stage(HaloStaging::kFloats, kOperands);
  static constexpr bool kPromoted = promotes(kOperands);
  static constexpr int kPixelBytes = kChannels * sizeof(T);                     // of the filter
  static constexpr int kDepth = 32 / sizeof(T), kSteps = kChannels / kDepth;    // channels of an instruction
  static constexpr int kAccumulators = kBlockK * kColumns / 2;                  // of one M-block, per thread
  static constexpr uint32_t kPartStep = kColumns * kBlockK * kPixelBytes >> 4;  // of the filter
  static constexpr int kTapRows = kColumns;  // that a row of the halo is multiplied by at once
  static constexpr int kAcross = kTapRows > 1 ? kFloatsAcross : kMBlocks, kRows = kMBlocks / kAcross;
  static constexpr int kHaloRows = kRows + kTapRows - 1;
  using Loader = FloatLoader<kDepth, kChannels>;
  using Values = typename Loader::Values;
  using Operands = FloatOperands<T, kParts>;
  using Sums = float[kMBlocks][kAccumulators];

  // `issued` is called when no stage is left to wait for, with wgmmas still in flight.
  template <typename F>
  static __device__ __forceinline__ void run(const HaloParams& params, const Tile& tile, int first_block, Ring& halo,
                                             Ring& filter, bool release_filter, bool elected, Sums& sums, F issued) {
    const OutputPhase& phase = params.phase[tile.phase];
    const Loader loader(params);
    if constexpr (kPromoted) clear(sums);
    const float scale = is_scaled(kOperands) ? params.gate.range->scale[0] : 1;
    int accumulate = 0;
    uint32_t done[kTapRows];  // barriers of filter stages that products under way read
    bool releases = false;
    auto release = [&] {
      if (!releases) return;
#pragma unroll
      for (int t = 0; t < kTapRows; ++t) ptx::mbarrier_arrive(done[t]);
    };
    for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
      for (int g = phase.group_begin; g < phase.group_end; ++g) {
        const TapGroup& group = params.group[g];
        const FloatRows rows(params, tile, group);
        halo.wait_full();
        for (int i = 0; i < group.rows; i += kTapRows) {
          for (int j = 0; j < group.cols; j += kColumns) {
            uint32_t b[kTapRows], read[kTapRows];
#pragma unroll
            for (int t = 0; t < kTapRows; ++t, filter.next()) {
              filter.wait_full();
              b[t] = ptx::descriptor_low(filter.stage()), read[t] = filter.empty();
            }
            // Step k of the M-block that is `m`-th in row `row` of them, shifted by the tap.
            auto load = [&](int k, int row, int m, auto& v) {
              const FloatPlace block = float_block(params, first_block + m);
              loader.template load<(kColumns > 1)>(halo.stage(), rows, block.row + row + i * group.row_step,
                                                   block.column + j * group.col_step, k, v);
            };
            if constexpr (kPromoted) {
              multiply_promoted(b, sums, scale, load);
            } else {
              multiply(b, sums, scale, accumulate, load, release);
              accumulate = 1;
            }
            releases = elected && release_filter;
#pragma unroll
            for (int t = 0; t < kTapRows; ++t) done[t] = read[t];
            if (kPromoted) release();
          }
        }
        __syncwarp();
        if (elected) ptx::mbarrier_arrive(halo.empty());
        halo.next();
      }
    }
    issued();
    ptx::wgmma_wait<0>();
    if (!kPromoted) release();
  }

 private:
  // The products of parts, of fragment `i` of two, whose numbers add up to `size`.
  static __device__ __forceinline__ void multiply(const Operands& a, int i, uint32_t b, int k, int size,
                                                  float (&acc)[kAccumulators], int accumulate) {
    const uint32_t b_high = ptx::descriptor_high(8 * kPixelBytes, ptx::swizzle_of(kPixelBytes));
#pragma unroll
    for (int first = 0; first <= size; ++first) {
      ptx::wgmma<T, ptx::Major::kK>(acc, a.part[first][i],
                                    ptx::descriptor(b + (size - first) * kPartStep + 2 * k, b_high),
                                    first == 0 ? accumulate : 1);
    }
  }

  // While a pair of fragments is multiplied, the next one is made and the one after that is on its way. `release` is
  // called when all earlier products are done.
  template <typename Load, typename Release>
  static __device__ __forceinline__ void multiply(const uint32_t (&b)[kTapRows], Sums& sums, float scale,
                                                  int accumulate, Load load, Release release) {
    constexpr int kPairs = kSteps * kHaloRows * kAcross / 2;
    static_assert(kPairs % 2 == 0 &&
                  kSteps * kHaloRows * kAcross % 2 == 0);  // the last pair is in the second registers
    Values v[2];
    Operands operands[2];
    auto load_pair = [&](int pair) {
#pragma unroll
      for (int f = 2 * pair; f < 2 * pair + 2; ++f) {
        load(f / (kHaloRows * kAcross), f / kAcross % kHaloRows, f % kAcross, v[pair % 2][f % 2]);
      }
    };
    load_pair(0);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      ptx::wgmma_wait<1>();
      if (pair == 1) release();
      if (pair + 1 < kPairs) load_pair(pair + 1);
      Operands& a = operands[pair % 2];
      a.make(v[pair % 2], scale);
      ptx::wgmma_fence();
#pragma unroll
      for (int f = 2 * pair; f < 2 * pair + 2; ++f) {
        const int k = f / (kHaloRows * kAcross), row = f / kAcross % kHaloRows;
#pragma unroll
        for (int t = 0; t < kTapRows; ++t) {
          if (row - t < 0 || row - t >= kRows) continue;
          float (&acc)[kAccumulators] = sums[(row - t) * kAcross + f % kAcross];
#pragma unroll
          for (int size = kParts - 1; size >= 0; --size) {
            multiply(a, f % 2, b[t], k, size, acc, k + t == 0 && size == kParts - 1 ? accumulate : 1);
          }
        }
      }
      ptx::wgmma_commit();
    }
  }

  // Sums of products of one size move to those of the ordinary kind, with their weight: see split_scale().
  template <typename Load>
  static __device__ __forceinline__ void multiply_promoted(const uint32_t (&b)[kTapRows], Sums& sums, float scale,
                                                           Load load) {
    constexpr int kTogether = kTapRows > 1 ? kRows : kMBlocks;  // M-blocks whose operands there is room for
    constexpr int kGroups = kTogether * kParts, kBuffers = kAccumulators <= 32 ? 2 : 1;
#pragma unroll
    for (int first = 0; first < kMBlocks / kTogether; ++first) {
      constexpr int kFragments = kSteps * (kTogether + kTapRows - 1);
      static_assert(kFragments % 2 == 0);
      Operands operands[kFragments / 2];
#pragma unroll
      for (int f = 0; f < kFragments; f += 2) {
        Values v;
#pragma unroll
        for (int i = f; i < f + 2; ++i) {
          const int row = i / kSteps;
          load(i % kSteps, kTapRows > 1 ? row : 0, kTapRows > 1 ? first : row, v[i % 2]);
        }
        operands[f / 2].make(v, scale);
      }
      float acc[kBuffers][kAccumulators];
      auto add = [&](int group) {
        float weight = 1;
        for (int size = group % kParts + 1; size < kParts; ++size) weight /= split_scale(kParts, kOperandOf<T>);
        float (&sum)[kAccumulators] = sums[kTapRows > 1 ? group / kParts * kAcross + first : group / kParts];
#pragma unroll
        for (int e = 0; e < kAccumulators; ++e) {
          float& product = acc[group % kBuffers][e];
          if (weight != 1) make_finite(product);
          sum[e] += weight * product;
        }
      };
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int t = 0; t < kTapRows; ++t) {
            const int f = (group / kParts + t) * kSteps + k;
            multiply(operands[f / 2], f % 2, b[t], k, kParts - 1 - group % kParts, acc[group % kBuffers],
                     k + t == 0 ? 0 : 1);
          }
        }
        ptx::wgmma_commit();
        if (kBuffers == 2 && group > 0) {
          ptx::wgmma_wait<1>();
          add(group - 1);
        } else if (kBuffers == 1) {
          ptx::wgmma_wait<0>();
          add(group);
        }
      }
      ptx::wgmma_wait<0>();
      if (kBuffers == 2) add(kGroups - 1);
    }
  }
};

}  // namespace fastconv
