// Depthwise convolution of 16-bit elements with wide filters, channels side by side, for sm_90a: see
// families/depthwise/pairs.h. Sums are float32.
#pragma once

#include "fastconv/families/depthwise/definition.cuh"
#include "fastconv/families/depthwise/pairs.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

// The boxes of a block's units, one after the other, by one thread.
template <DepthwisePairsConfig kConfig>
class PairsLoads {
 public:
  __device__ PairsLoads(const DepthwisePairsParams& params, const CUtensorMap& map, const PairsShare& share)
      : params_(params),
        map_(map),
        channel_(share.channel),
        column_(share.column - params.padding_w),
        index_(share.first_unit),
        unit_(kConfig, params, index_) {}

  // To the ring's stage, which is free: a ring has as many boxes on their way as stages.
  __device__ void next(const Ring& ring) {
    if (index_ >= params_.units) return;
    if (box_ < unit_.row_boxes) {
      ptx::mbarrier_arrive_expect(ring.full(), params_.box_bytes(kConfig.box_rows()));
      ptx::tma_load(ring.stage(), &map_, channel_, column_, unit_.source_row + box_ * kConfig.box_rows(), unit_.image,
                    0, ring.full());
    } else {
      ptx::mbarrier_arrive(ring.full());
    }
    if (++box_ < unit_.boxes) return;
    box_ = 0, index_ += params_.tiling.shares;
    unit_ = PairsUnit(kConfig, params_, index_);
  }

 private:
  const DepthwisePairsParams& params_;
  const CUtensorMap& map_;
  int32_t channel_, column_;
  int32_t index_, box_ = 0;
  PairsUnit unit_;
};

// The warp that moves: brings boxes, stores the targets of each box once all other warps are done with it, and lets the
// next one take its place when these have been read.
template <DepthwisePairsConfig kConfig>
__device__ __forceinline__ void move_boxes(const DepthwisePairsParams& params, const CUtensorMap& source_map,
                                           const CUtensorMap& target_map, const PairsShare& share, Ring ring,
                                           uint32_t targets) {
  const auto row = static_cast<int32_t>(threadIdx.x % 32);  // of a box
  PairsLoads<kConfig> loads(params, source_map, share);
  if (row == 0) {
    // Filters come with the first box, to where targets will be: lanes want values far apart, one by one.
    const auto* filter = static_cast<const uint16_t*>(params.filter) - params.first_tap_offset();
    const int32_t bytes = min(kPairsChannels, params.channels - share.channel) * params.filter_bytes;
    ptx::mbarrier_expect(ring.full(), bytes);
    ptx::bulk_load(targets, filter + share.channel * params.filter_strides.n, bytes, ring.full());
    Ring stages = ring;
    for (int i = 0; i < ring.stages; ++i, stages.next()) loads.next(stages);
  }
#pragma unroll 1
  for (int32_t index = share.first_unit; index < params.units; index += params.tiling.shares) {
    const PairsUnit unit(kConfig, params, index);
#pragma unroll 1
    for (int32_t output = unit.output + row, box = 0; box < unit.boxes; ++box, output += kConfig.box_rows()) {
      ring.wait_left();
      if (row < kConfig.box_rows() && output >= 0 && output < unit.outputs) {
        ptx::tma_store(&target_map, targets + (ring.index * kConfig.box_rows() + row) * params.target_row_bytes(),
                       share.channel, share.column, unit.row + output, unit.image, 0);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      __syncwarp();
      if (row == 0) loads.next(ring);
      ring.next();
    }
  }
  ptx::bulk_wait();
}

// A warp's operands, from filters of its channels as they lie in shared memory: words 0 and 2 of the row of the pair's
// first channel, 1 and 3 of the second's, for target lane / 4. Returns zeros, or NaNs if a tap is not finite.
template <typename T, int kTaps>
__device__ __forceinline__ uint32_t load_pairs(const DepthwisePairsParams& params, const uint16_t* filter,
                                               uint32_t (&pairs)[kTaps][2][4]) {
  const Strides& strides = params.filter_strides;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int32_t s0 = operand_position(lane, i % 4 / 2, 0) - lane / 4;
    const int32_t s1 = operand_position(lane, i % 4 / 2, 1) - lane / 4;
    const bool exist0 = s0 >= 0 && s0 < params.taps_w, exist1 = s1 >= 0 && s1 < params.taps_w;
    const uint16_t* taps = filter + (i / 4 * 2 + i % 2) * strides.n;
#pragma unroll
    for (int r = 0; r < kTaps; ++r, taps += strides.h) {
      const bool exists = r < params.taps_h;
      const uint32_t first = exists && exist0 ? taps[s0 * strides.w] : 0;
      const uint32_t second = exists && exist1 ? taps[s1 * strides.w] : 0;
      pairs[r][i / 4][i % 4] = first | second << 16;
      not_finite = add_zeros<T>(pairs[r][i / 4][i % 4], not_finite);
    }
  }
  return not_finite;
}

__device__ __forceinline__ void copy_sums(const float (&from)[2][4], float (&to)[2][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i / 4][i % 4] = from[i / 4][i % 4];
}

// Which two of every four elements the products take: of the pair's first channel in rows 0 to 7, then of its second.
inline constexpr uint32_t kPairsPlaces = 0xdddd8888;

// Output and input gradient.
template <typename T, typename Line>
__global__ void __launch_bounds__(kPairsThreads, 1)
    depthwise_pairs(const __grid_constant__ DepthwisePairsParams params, const __grid_constant__ CUtensorMap source_map,
                    const __grid_constant__ CUtensorMap target_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DepthwisePairsConfig kConfig = Line::kConfig;
  constexpr int kTaps = kConfig.taps, kBoxRows = kConfig.box_rows();
  extern __shared__ uint8_t smem_raw[];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  const DepthwisePairsTiling& tiling = params.tiling;
  Ring ring;
  ring.data = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  ring.stage_bytes = params.stage_bytes(kBoxRows), ring.stages = tiling.stages;
  const uint32_t targets = ring.data + ring.stages * ring.stage_bytes;
  const uint32_t target_row_bytes = params.target_row_bytes();
  const uint32_t target_box_bytes = kBoxRows * target_row_bytes;
  ring.barriers = targets + ring.stages * target_box_bytes;
  ring.init(warp, kPairsThreads / 32, lane, 1, kPairsWarps);
  ptx::mbarrier_init_fence();
  __syncthreads();

  const PairsShare share(params, static_cast<int32_t>(blockIdx.x));
  if (warp >= kPairsWarps) {
    ptx::release_registers<kPairsMoverRegisters>();
    if (warp == kPairsWarps) move_boxes<kConfig>(params, source_map, target_map, share, ring, targets);
    ptx::barrier_arrive<kPairsThreads>(2);
    return;
  }

  ptx::acquire_registers<kPairsRegisters>();
  const int32_t channels = min(kPairsChannels, params.channels - share.channel);
  // A warp without channels of its own computes the last ones', whose results are not stored.
  const int32_t own = min(warp * kPairsWarpChannels, channels - kPairsWarpChannels);
  float none[2][4] = {};  // not const: nvcc takes no conditional of two kinds of arrays
  const Epilogue<T> epilogue(params.epilogue);
  FilterEpilogue<float> finish[kPairsWarpChannels];
#pragma unroll
  for (int i = 0; i < kPairsWarpChannels; ++i) finish[i] = epilogue.of(share.channel + own + i);
  const auto* filter = reinterpret_cast<const uint16_t*>(smem_raw + (targets - ptx::smem_address(smem_raw)));
  uint32_t pairs[kTaps][2][4];
  ring.wait_full();
  uint32_t not_finite =
      load_pairs<T>(params, filter + params.first_tap_offset() + own * params.filter_strides.n, pairs);
  // Runs that a block has not are run 0 once more, and stored nowhere.
  auto run = [&](int32_t i) { return i < tiling.runs * tiling.images ? i : 0; };
  // NOTES: the two words of an access are not neighbours among the registers of a product, and ptxas copied them for
  // one product after the other, three times as often as needed. A zero that it cannot know of, by OR, makes each a
  // value of its own, which it puts where all products of a row want it.
  const auto zero = static_cast<uint32_t>(params.images >> 31);
  uint32_t from[4], to[2];
  bool stores[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t pixel = params.source_pixel(run(lane / 4), kBoxRows) + run_position(lane, i);
    from[i] = kept(ring.data + params.swizzled(pixel * kPairsPixelBytes + warp * 2 * kPairsWarpChannels));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t column = lane % 4 * 2 + i, pixel = params.target_pixel(column) + lane / 4;
    stores[i] = run(column) == column && lane / 4 < tiling.targets;
    to[i] = kept(targets + params.swizzled(pixel * kPairsPixelBytes + warp * 2 * kPairsWarpChannels));
  }
  ptx::barrier_sync<32 * kPairsWarps>(1);  // all have their operands

#pragma unroll 1
  for (int32_t index = share.first_unit; index < params.units; index += tiling.shares) {
    const PairsUnit unit(kConfig, params, index);
    float sums[kTaps][2][4] = {};
#pragma unroll 1
    for (int32_t box = 0; box < unit.boxes; ++box) {
      const uint32_t target = ring.index * target_box_bytes;
      // Of both channels of both pairs: the one column of the product, then the other.
      auto store = [&](int row, const float (&done)[2][4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 words = make_uint2(pack2<T>(finish[0](done[0][i]), finish[1](done[0][2 + i])),
                                         pack2<T>(finish[2](done[1][i]), finish[3](done[1][2 + i])));
          if (stores[i]) ptx::store_shared8(to[i] + target + row * target_row_bytes, words);
          not_finite = add_zeros<T>(words.y, add_zeros<T>(words.x, not_finite));
        }
      };
      ring.wait_full();
      if (box < unit.row_boxes) {
        uint32_t pixels[2][2][4];
        auto read = [&](int row) {
          const uint32_t at = ring.index * ring.stage_bytes + row * params.source_row_bytes();
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint2 words = ptx::load_shared8(from[i] + at);
            pixels[row % 2][0][i] = words.x | zero, pixels[row % 2][1][i] = words.y | zero;
          }
        };
        float done[2][4];
        read(0);
        // Between a row's products the next one is read, and the targets are stored that the one before completed.
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
          if (row + 1 < kBoxRows) read(row + 1);
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            // The oldest targets are done, and the others move up.
#pragma unroll
            for (int slot = 0; slot < kTaps; ++slot) {
              const float (&sum)[4] = slot + 1 < kTaps ? sums[slot + 1][pair] : none[pair];
              ptx::mma_sparse(T{}, sums[slot][pair], pairs[kTaps - 1 - slot][pair], pixels[row % 2][pair], kPairsPlaces,
                              sum);
            }
            if (pair == 0 && row > 0) store(row - 1, done);
          }
          copy_sums(sums[0], done);
        }
        store(kBoxRows - 1, done);
      } else {
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
#pragma unroll
          for (int slot = 0; slot < kTaps; ++slot) copy_sums(slot + 1 < kTaps ? sums[slot + 1] : none, sums[slot]);
          store(row, sums[0]);
        }
      }
      ptx::async_proxy_fence();
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.empty());
      ring.next();
    }
  }
  ptx::barrier_sync<kPairsThreads>(2);  // all targets are stored
  if (!__any_sync(0xffffffffu, not_finite != 0)) return;
  // By definition: a zero beside the taps, or a row of padding, has met an infinity or NaN.
  for (int32_t index = share.first_unit; index < params.units; index += tiling.shares) {
    const PairsUnit unit(kConfig, params, index);
    for (int32_t i = lane; i < tiling.images * tiling.columns() * kPairsWarpChannels; i += 32) {
      const int32_t channel = share.channel + warp * kPairsWarpChannels + i % kPairsWarpChannels;
      const int32_t image = i / kPairsWarpChannels / tiling.columns();
      const int32_t column = i / kPairsWarpChannels % tiling.columns();
      if (channel >= params.channels || unit.image + image >= params.images) continue;
      const ReducedChannels only{channel, 1, channel * params.filter_strides.n, 0};
      convolve_column_by_definition<T, false, 1>(params, unit.image + image, only, channel, unit.row,
                                                 unit.row + unit.outputs, share.column + column);
    }
  }
#endif
}

}  // namespace fastconv
