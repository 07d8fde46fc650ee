// Consumer of the weight gradient of float32 whose dy arrives as it lies, WgradStaging::kRaw: a warpgroup loads
// fragments of dy, splits them into parts and multiplies these from registers by the parts of x, all in one pass.
#pragma once

#include <type_traits>
#include <utility>

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/mainloop_wgrad_sm90.cuh"

namespace fastconv {

// A thread's values of 16 pixels of 64 filters of dy.
struct RawFragments {
  const WgradRaw& raw;
  int thread;
  uint32_t first;  // from a stage's start to the thread's first value, apart from the step

  __device__ __forceinline__ RawFragments(const WgradParams& params, int m_block, int thread)
      : raw(params.raw),
        thread(thread),
        first(params.y_offset + m_block * params.y_block_bytes + 4 * fragment_place(params.raw, thread, 0)) {}

  // What lies beyond the image's row is zero. NOTES: the branches are the same for all threads.
  __device__ __forceinline__ void load(uint32_t stage, const WgradRawTile& tile, WgradStep step, float (&v)[8]) const {
    const int place = tile.place(step), pixels = tile.pixels(step);
    const uint32_t from = stage + first + 4 * place;
    if (place % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const uint2 pair = ptx::load_shared8(from + 4 * fragment_place(raw, 0, i));
        v[i] = __uint_as_float(pair.x), v[i + 1] = __uint_as_float(pair.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(ptx::load_shared4(from + 4 * fragment_place(raw, 0, i)));
    }
    if (pixels >= 16) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (fragment_pixel(thread, i) >= pixels) v[i] = 0;
    }
  }
};

template <int kChannels, int kBlocks, int kUnits>
struct WgradRawMainloop {
  static constexpr bool kSplit = true;
  using Operand = __nv_bfloat16;
  static constexpr int kN = kChannels * kBlocks, kAccumulators = kN / 2;
  // Of fragments: one is prepared while another is multiplied. NOTES: where registers do not suffice, the other
  // warpgroup multiplies meanwhile.
  static constexpr int kBuffers = kUnits * kAccumulators > 72 ? 1 : 2;

  static __device__ __forceinline__ void run(const WgradParams& params, const WgradShare& share, int first_slot,
                                             Ring& ring, bool elected, float (&acc)[kUnits][kAccumulators]) {
    if (params.parts == 2) {
      multiply<2>(params, share, first_slot, ring, elected, acc);
    } else {
      multiply<3>(params, share, first_slot, ring, elected, acc);
    }
  }

 private:
  template <int kParts, int kNeeded>
  static __device__ __forceinline__ void split(const float (&v)[8], uint32_t (&a)[kParts][4]) {
    SplitParts parts(v);
    parts.infinite = __any_sync(~0u, parts.infinite);
#pragma unroll
    for (int p = 0; p < kNeeded; ++p) {
      if (p < kParts - 1) {
        parts.next(p == 0, split_scale(kParts), a[p]);
      } else {
        parts.last(a[p]);
      }
    }
  }

  template <int kParts>
  static __device__ __forceinline__ void multiply(const WgradParams& params, const WgradShare& share, int first_slot,
                                                  Ring& ring, bool elected, float (&acc)[kUnits][kAccumulators]) {
    const WgradTapGroup& group = params.tap_group[share.job.tap_group];
    const int m_block = first_slot / params.units_per_m_block;  // of all units of the warpgroup
    const RawFragments fragments(params, m_block, threadIdx.x % 128);
    const uint32_t x_high = ptx::descriptor_high(params.x_group_pitch, ptx::swizzle_of(2 * kChannels));
    const uint32_t x_part = params.stage_part_bytes / 16;
    uint32_t x_low[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int index = group.unit_begin + first_slot + u - m_block * params.units_per_m_block;
      const WgradUnit& unit = params.unit[min(index, group.unit_end - 1)];  // a slot left over repeats the last unit
      x_low[u] = ptx::descriptor_low(unit.start * 16, unit.step * 16);
    }

    uint32_t a[kBuffers][kParts][4];
    int accumulate = 0;
    uint32_t done = 0;  // barrier to arrive on after the next wait
    Promotion<true, kUnits, kAccumulators> promotion(params);
    promotion.begin_all(params);

    auto products = [&]<int kIndex>(const uint32_t(&parts)[kParts][4], uint32_t x, int scale) {
      constexpr SplitProduct kProduct(kParts, kIndex);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        ptx::wgmma<Operand, ptx::Major::kMn>(acc[u], parts[kProduct.second],
                                             ptx::descriptor(x_low[u] + x + kProduct.first * x_part, x_high), scale);
      }
    };
    // A step pair's products of parts. `turn` is called when accumulators may be changed, before they are added to.
    auto step_pair = [&]<int kBegin, int kEnd>(const WgradRawTile& tile, int pair, auto turn) {
      constexpr int kNeeded = SplitProduct(kParts, kBegin).second + 1;  // parts of dy
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const WgradStep step = params.step[2 * pair + k];
        uint32_t(&parts)[kParts][4] = a[k % kBuffers];
        float v[8];
        fragments.load(ring.stage(), tile, step, v);
        ptx::wgmma_wait<kBuffers - 1>();
        if (k == kBuffers - 1) {
          if (elected && done != 0) ptx::mbarrier_arrive(done);
          done = 0;
        }
        split<kParts, kNeeded>(v, parts);
        if (k == 0) turn();
        const uint32_t x = ptx::descriptor_low(ring.stage(), 0) + step.x;
        ptx::wgmma_fence();
        [&]<int... i>(std::integer_sequence<int, i...>) {
          (products.template operator()<kBegin + i>(parts, x, k == 0 && i == 0 ? accumulate : 1), ...);
        }(std::make_integer_sequence<int, kEnd - kBegin>{});
        ptx::wgmma_commit();
      }
      accumulate = 1;
    };

    for (int t = share.split; t < params.tiles; t += params.splits) {
      const WgradRawTile tile(params, WgradTile(params, t));
      ring.wait_full();
      if constexpr (kParts == 2) {
        for (int pair = 0; pair < params.step_pairs; ++pair) {
          step_pair.template operator()<0, 3>(tile, pair, [&] {
            if (!promotion.is_due()) return;
            ptx::wgmma_wait<0>();
            promotion.add(acc);
            accumulate = 0;
          });
        }
      } else {
        // Products of one size after the other, as each has a scale of its own.
        for (int begin = 0; begin < params.step_pairs; begin += params.promotion) {
          const int end = min(begin + params.promotion, params.step_pairs);
          auto pass = [&]<int kBegin, int kEnd>(auto start) {
            for (int pair = begin; pair < end; ++pair) {
              step_pair.template operator()<kBegin, kEnd>(tile, pair, [&] {
                if (pair != begin) return;
                ptx::wgmma_wait<0>();
                start();
              });
            }
          };
          auto shrink = [&] { promotion.shrink(acc); };
          pass.template operator()<0, 3>([&] {
            if (accumulate != 0) promotion.add(acc);
            accumulate = 0;
          });
          pass.template operator()<3, 5>(shrink);
          pass.template operator()<5, 6>(shrink);
        }
      }
      done = ring.empty();
      ring.next();
    }
    ptx::wgmma_wait<0>();
    promotion.end(acc);
  }
};

}  // namespace fastconv
