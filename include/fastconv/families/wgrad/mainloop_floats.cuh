// Consumer of the weight gradient of float32 whose dy arrives as it lies, WgradStaging::kFloats: a warpgroup loads
// fragments of dy, splits them into parts and multiplies these from registers by the parts of x, one pass for all.
#pragma once

#include "fastconv/families/wgrad/mainloop.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

// A thread's values of 16 pixels of 64 filters of dy.
struct WgradFragments {
  const WgradFloats& floats;
  uint32_t first;  // from a stage's start to the thread's first value, apart from the step

  __device__ __forceinline__ WgradFragments(const WgradParams& params, int m_block, int thread)
      : floats(params.floats),
        first(params.y_offset + m_block * params.y_block_bytes + 4 * fragment_place(params.floats, thread, 0)) {}

  // What lies beyond the image's row is zero. NOTES: the branches are the same for all threads.
  __device__ __forceinline__ void load(uint32_t stage, const WgradFloatsTile& tile, WgradStep step,
                                       float (&v)[8]) const {
    const int place = tile.place(step), pixels = tile.pixels(step);
    const uint32_t from = stage + first + 4 * place;
    if (place % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const uint2 pair = ptx::load_shared8(from + 4 * fragment_place(floats, 0, i));
        v[i] = __uint_as_float(pair.x), v[i + 1] = __uint_as_float(pair.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(ptx::load_shared4(from + 4 * fragment_place(floats, 0, i)));
    }
    if (pixels >= 16) return;
    const int lane = ptx::lane();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (fragment_pixel(lane, i) >= pixels) v[i] = 0;
    }
  }
};

template <typename T, int kChannels, int kBlocks, int kUnits, int kWarpgroups>
struct WgradFloatsMainloop {
  static constexpr Operand kOperand = kOperandOf<T>;
  static constexpr int kAccumulators = kChannels * kBlocks / 2;  // of one unit, per thread
  using Sums = float[kUnits][kAccumulators];

  static __device__ __forceinline__ void run(const WgradParams& params, const WgradShare& share, int first_slot,
                                             Ring& ring, bool elected, Sums& acc) {
    if (params.parts == 2) {  // always of fp16
      Multiplier<2>(params, share, first_slot, ring, elected, acc).run(share);
    } else if constexpr (kOperand == Operand::kBf16) {
      Multiplier<3>(params, share, first_slot, ring, elected, acc).run(share);
    }
  }

 private:
  // One fragment is split while another is multiplied. NOTES: where registers do not suffice for both, other
  // warpgroups multiply meanwhile.
  static constexpr int kBuffers = kUnits * kAccumulators > 72 || kWarpgroups > 2 ? 1 : 2;

  template <int kParts>
  struct Multiplier {
    const WgradParams& params;
    Ring& ring;
    const bool elected;
    Sums& acc;
    const WgradFragments fragments;
    const float scale;  // of fp16
    Promotion<true, kOperand, kUnits, kAccumulators> promotion;
    uint32_t x_low[kUnits];
    uint32_t part[kBuffers][kParts][4];  // of dy
    int accumulate = 0;
    uint32_t done = 0;  // barrier to arrive on after the next wait

    __device__ __forceinline__ Multiplier(const WgradParams& params, const WgradShare& share, int first_slot,
                                          Ring& ring, bool elected, Sums& acc)
        : params(params),
          ring(ring),
          elected(elected),
          acc(acc),
          fragments(params, params.units_per_m_block.div(first_slot), threadIdx.x % 128),
          scale(kOperand == Operand::kFp16 ? params.gate.range->scale[1] : 1),
          promotion(params) {
      const WgradTapGroup& group = params.tap_group[share.job.tap_group];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        int m_block, index;
        params.units_per_m_block.divmod(first_slot + u, m_block, index);
        // A slot left over repeats the last unit.
        const WgradUnit& unit = params.unit[min(group.unit_begin + index, group.unit_end - 1)];
        x_low[u] = ptx::descriptor_low(unit.start * 16, unit.step * 16);
      }
    }

    __device__ __forceinline__ void run(const WgradShare& share) {
      promotion.begin_all(params);
      for (int t = share.split; t < params.tiles; t += params.splits) {
        const WgradFloatsTile tile(params, WgradTile(params, t));
        ring.wait_full();
        if constexpr (split_scale(kParts, kOperand) == 1) {
          multiply_at_once(tile);
        } else {
          multiply_by_size(tile);
        }
        done = ring.empty();
        ring.next();
      }
      ptx::wgmma_wait<0>();
      promotion.end(acc);
    }

   private:
    __device__ __forceinline__ void multiply_at_once(const WgradFloatsTile& tile) {
      for (int pair = 0; pair < params.step_pairs; ++pair) {
        step_pair<kParts - 1, 0>(tile, pair, [&] {
          if (promotion.is_due()) promote();
        });
      }
    }

    // Products of each size have a scale of their own, see split_scale().
    __device__ __forceinline__ void multiply_by_size(const WgradFloatsTile& tile) {
      for (int begin = 0; begin < params.step_pairs; begin += params.promotion) {
        const int end = min(begin + params.promotion, params.step_pairs);
        auto shrink = [&] {
          ptx::wgmma_wait<0>();
          promotion.shrink(acc);
        };
        step_pairs<kParts - 1>(tile, begin, end, [&] {
          if (accumulate != 0) promote();
        });
        if constexpr (kParts == 3) step_pairs<1>(tile, begin, end, shrink);
        step_pairs<0>(tile, begin, end, shrink);
      }
    }

    __device__ __forceinline__ void promote() {
      ptx::wgmma_wait<0>();
      promotion.add(acc);
      accumulate = 0;
    }

    template <int kSize, typename F>
    __device__ __forceinline__ void step_pairs(const WgradFloatsTile& tile, int begin, int end, F first) {
      for (int pair = begin; pair < end; ++pair) {
        step_pair<kSize, kSize>(tile, pair, [&] {
          if (pair == begin) first();
        });
      }
    }

    // Products of parts whose numbers add up to kMost, then less, down to kLeast. `turn` may change accumulators.
    template <int kMost, int kLeast, typename F>
    __device__ __forceinline__ void step_pair(const WgradFloatsTile& tile, int pair, F turn) {
      constexpr int kRowBytes = 2 * kChannels;  // 16 pixels are neighbours, of one row of x
      const uint32_t x_high = ptx::descriptor_high(8 * kRowBytes, ptx::swizzle_of(kRowBytes));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const WgradStep step = params.step[2 * pair + k];
        uint32_t (&y)[kParts][4] = part[k % kBuffers];
        float v[8];
        fragments.load(ring.stage(), tile, step, v);
        ptx::wgmma_wait<kBuffers - 1>();  // those that read y
        if (k == kBuffers - 1) {
          __syncwarp();  // the arrival speaks for all lanes' loads, which the products' wait does not order
          if (elected && done != 0) ptx::mbarrier_arrive(done);
          done = 0;
        }
        split<kMost + 1>(v, y);
        if (k == 0) turn();
        const uint32_t x = ptx::descriptor_low(ring.stage(), 0) + step.x;
        ptx::wgmma_fence();
#pragma unroll
        for (int size = kMost; size >= kLeast; --size) {
#pragma unroll
          for (int i = 0; i <= size; ++i) {
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
              ptx::wgmma<T, ptx::Major::kMn>(acc[u], y[size - i],
                                             ptx::descriptor(x_low[u] + x + i * (params.stage_part_bytes >> 4), x_high),
                                             k == 0 && size == kMost && i == 0 ? accumulate : 1);
            }
          }
        }
        ptx::wgmma_commit();
      }
      accumulate = 1;
    }

    // The first so many parts.
    template <int kCount>
    __device__ __forceinline__ void split(const float (&v)[8], uint32_t (&y)[kParts][4]) const {
      auto parts = parts_of<kOperand>(v, scale);
#pragma unroll
      for (int i = 0; i < kCount; ++i) parts.take(i, kParts, y[i]);
    }
  };
};

}  // namespace fastconv
