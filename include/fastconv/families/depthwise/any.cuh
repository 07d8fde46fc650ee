// Depthwise convolution with a filter of any size, all passes, by multiply-adds of float32: source and taps lie in
// shared memory, and a thread has the sums of a few rows and columns of targets, see families/depthwise/any.h.
#pragma once

#include <type_traits>

#include "fastconv/families/depthwise/any.h"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

extern __shared__ __align__(16) float depthwise_any_smem[];

// A run of elements that neighbouring threads take: columns of a row, or channels of a pixel. `at`: its first one in
// shared memory.
struct DepthwiseAnyRun {
  int32_t channel, image, slot_h, class_h, slot_w, class_w;
  int32_t at;
};
template <typename F>
__device__ __forceinline__ void each_run(const DepthwiseAnyPlanes& planes, F&& f) {
  const auto thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int32_t inner = planes.channels_inner ? planes.slots_w : planes.planes();
  const int32_t runs = planes.rows * planes.classes_w * inner;
  for (int32_t i = thread >> planes.lanes_log2; i < runs; i += threads >> planes.lanes_log2) {
    DepthwiseAnyRun run{};
    int32_t rest = i, row, plane = 0;
    if (planes.channels_inner) planes.by_slots_w.divmod(rest, rest, run.slot_w);
    planes.by_classes_w.divmod(rest, rest, run.class_w);
    planes.by_rows.divmod(rest, plane, row);
    planes.by_slots_h.divmod(row, run.class_h, run.slot_h);
    planes.by_images.divmod(plane, run.channel, run.image);
    run.at = plane * planes.plane_pitch + row * planes.row_pitch + run.class_w * planes.class_pitch + run.slot_w;
    f(run);
  }
}

// Copies a run in pieces of kPiece elements, zeros for those that do not exist. `step`: in shared memory, from an
// element to the next one.
template <int kPiece, typename T, typename Offset, typename Exists>
__device__ __forceinline__ void stage_run(const T* tensor, float* to, int32_t step, int32_t lane, int32_t lanes,
                                          int32_t count, Offset&& offset, Exists&& exists) {
  constexpr int kBatch = kDepthwiseAnyBatch;
  const int32_t pitch = kPiece * lanes;
  for (int32_t first = kPiece * lane; first < count; first += kBatch * pitch) {
    if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = first + b * pitch;
        if (i >= count) break;
        const bool read = exists(i);
        ptx::async_copy<4 * kPiece>(ptx::smem_address(to + i * step), read ? tensor + offset(i) : tensor, read);
      }
    } else {
      // All are on their way before the first one is needed.
      Vector<T, kPiece> pieces[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = first + b * pitch;
#pragma unroll
        for (T& value : pieces[b].data) value = narrow<T>(0.f);
        if (i < count && exists(i)) pieces[b] = *reinterpret_cast<const Vector<T, kPiece>*>(tensor + offset(i));
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = first + b * pitch;
        if (i >= count) break;
        Vector<float, kPiece> wide;
#pragma unroll
        for (int e = 0; e < kPiece; ++e) wide.data[e] = widen(pieces[b].data[e]);
        *reinterpret_cast<Vector<float, kPiece>*>(to + i * step) = wide;
      }
    }
  }
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;
template <typename F>
__device__ __forceinline__ void with_piece(const DepthwiseAnyPlanes& planes, F&& f) {
  switch (planes.piece) {
    case 4: f(Constant<4>{}); break;
    case 2: f(Constant<2>{}); break;
    default: f(Constant<1>{});
  }
}

// `channel_of`: from one of the block's channels to the tensor's.
template <typename T, typename ChannelOf>
__device__ __forceinline__ void stage_planes(const DepthwiseAnyPlanes& planes, const DepthwiseAnyParams& params,
                                             const T* tensor, int32_t channels, int32_t first_image, int32_t images,
                                             const DepthwiseAnySpan& h, const DepthwiseAnySpan& w, float* to,
                                             ChannelOf&& channel_of) {
  const Strides& strides = planes.strides;
  const int32_t lanes = 1 << planes.lanes_log2, lane = static_cast<int32_t>(threadIdx.x) & (lanes - 1);
  each_run(planes, [&](const DepthwiseAnyRun& run) {
    const int32_t row = params.h.row(run.slot_h, run.class_h);
    const bool row_exists = row >= h.low && row < h.high && run.image < images && run.channel < channels;
    const T* from = tensor + (first_image + run.image) * strides.n + (h.first + h.step * row) * strides.h;
    if (planes.channels_inner) {
      const int32_t column = params.w.row(run.slot_w, run.class_w);
      const bool exists = row_exists && column >= w.low && column < w.high;
      from += (w.first + w.step * column) * strides.w;
      stage_run<1>(
          from, to + run.at, planes.plane_pitch, lane, lanes, planes.channels,
          [&](int32_t i) { return channel_of(i) * strides.c; }, [&](int32_t i) { return exists && i < channels; });
    } else {
      const int64_t step = w.step * strides.w;
      from += channel_of(run.channel) * strides.c + w.first * strides.w + params.w.row(0, run.class_w) * step;
      const int64_t slot_step = params.w.row(1, 0) * step;
      const int32_t low = params.w.slots_before(w.low, run.class_w);
      const int32_t high = row_exists ? params.w.slots_before(w.high, run.class_w) : low;
      with_piece(planes, [&]<int kPiece>(Constant<kPiece>) {
        stage_run<kPiece>(
            from, to + run.at, 1, lane, lanes, planes.slots_w,
            [&](int32_t i) { return kPiece == 1 ? i * slot_step : i; },
            [&](int32_t i) { return i >= low && i < high; });
      });
    }
  });
}

// kAtOnce rows of the source from row `a` on, by kTaps columns of those of `count` rows of taps that meet one of the
// thread's rows: source row a meets row a - i of the taps at target row i. `source` and `taps` are row a's addresses,
// aligned to an access. What these rows come to for a target is a chain of multiply-adds of its own, which is then
// added to the sum: one chain of all taps would round the equal products of columns that repeat the same way.
template <int kTaps, int kAtOnce, int kRows, int kColumns>
__device__ __forceinline__ void add_chains(float (&sums)[kRows][kColumns], const float* source, int32_t source_pitch,
                                           const float* taps, int32_t tap_pitch, int32_t a, int32_t count) {
  constexpr int kRead = kDepthwiseAnyRead;
  constexpr bool kChains = kTaps > 1;  // a single column repeats nothing
  auto read = [](const float* from, auto& to) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(to) / sizeof(float4)); ++i) {
      const float4 v = reinterpret_cast<const float4*>(from)[i];
      to[kRead * i] = v.x, to[kRead * i + 1] = v.y, to[kRead * i + 2] = v.z, to[kRead * i + 3] = v.w;
    }
  };
  float windows[kAtOnce][(kColumns + kTaps - 1 + kRead - 1) / kRead * kRead];
#pragma unroll
  for (int r = 0; r < kAtOnce; ++r) read(source + r * source_pitch, windows[r]);
  float tap[(kTaps + kRead - 1) / kRead * kRead];
  // The row of taps that ends one target row's chain begins another's, in the same registers.
  constexpr int kOpen = kAtOnce > 1 ? kAtOnce - 1 : 1;
  float chains[kOpen][kColumns] = {};
#pragma unroll
  for (int begins = kRows - 1; begins > -kAtOnce; --begins) {
    const int ends = begins + kAtOnce - 1;
    auto end = [&] {
      if (!kChains || ends >= kRows) return;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) sums[ends][k] += chains[ends % kOpen][k];
    };
    const int32_t row = a - begins;
    if (static_cast<uint32_t>(row) < static_cast<uint32_t>(count)) {
      read(taps - begins * tap_pitch, tap);
#pragma unroll
      for (int i = ends; i >= begins; --i) {
        if (i >= 0 && i < kRows) {
          float (&to)[kColumns] = kChains ? chains[i % kOpen] : sums[i];
#pragma unroll
          for (int t = 0; t < kTaps; ++t) {
#pragma unroll
            for (int k = 0; k < kColumns; ++k) {
              const float product = windows[i - begins][k + t] * tap[t];
              to[k] = kChains && i == begins && t == 0 ? product : to[k] + product;
            }
          }
        }
        if (i == ends) end();
      }
    } else if (row >= count && row < count + kAtOnce - 1) {
      end();
    }
  }
}

// Rows [begin, end) of the source, see add_chains.
template <int kTaps, int kRows, int kColumns>
__device__ __forceinline__ void add_rows(float (&sums)[kRows][kColumns], const float* source, int32_t source_pitch,
                                         const float* taps, int32_t tap_pitch, int32_t begin, int32_t end,
                                         int32_t count) {
  constexpr int kAtOnce = depthwise_any_at_once(kTaps);
  source += begin * source_pitch, taps += begin * tap_pitch;
  int32_t a = begin;
#pragma unroll 1
  for (; a <= end - kAtOnce; a += kAtOnce, source += kAtOnce * source_pitch, taps += kAtOnce * tap_pitch) {
    add_chains<kTaps, kAtOnce>(sums, source, source_pitch, taps, tap_pitch, a, count);
  }
#pragma unroll 1
  for (; a < end; ++a, source += source_pitch, taps += tap_pitch) {
    add_chains<kTaps, 1>(sums, source, source_pitch, taps, tap_pitch, a, count);
  }
}

// f(number, as a constant).
template <typename F>
__device__ __forceinline__ void with_chunk(int32_t taps, F&& f) {
  static_assert(kDepthwiseAnyChunk == 8);
  switch (taps) {
    case 1: f(Constant<1>{}); break;
    case 2: f(Constant<2>{}); break;
    case 3: f(Constant<3>{}); break;
    case 4: f(Constant<4>{}); break;
    case 5: f(Constant<5>{}); break;
    case 6: f(Constant<6>{}); break;
    case 7: f(Constant<7>{}); break;
    default: f(Constant<8>{});
  }
}

__device__ __forceinline__ int32_t warp_min(int32_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// False if a product with zero is not zero: then rows of padding must not be left out. For all threads of the block.
__device__ __forceinline__ bool finite_taps(const DepthwiseAnyParams& params, const float* taps, int32_t rows,
                                            int32_t columns, int32_t channels) {
  bool finite = true;
  const DepthwiseAnyPlanes& planes = params.tap_planes;
  each_run(planes, [&](const DepthwiseAnyRun& run) {
    const int32_t lanes = 1 << planes.lanes_log2, lane = static_cast<int32_t>(threadIdx.x) & (lanes - 1);
    if (run.channel >= channels || params.h.row(run.slot_h, run.class_h) >= rows) return;
    for (int32_t i = lane; i < params.w.slots_before(columns, run.class_w); i += lanes) {
      finite = finite && 0.f * taps[run.at + i] == 0.f;
    }
  });
  return __syncthreads_and(finite) != 0;
}

// Adds the shares of each target, in order, and stores the sums.
template <typename Store>
__device__ __forceinline__ void each_target(const DepthwiseAnyParams& params, const DepthwiseAnyTile& tile,
                                            int32_t channels, int32_t images, int32_t shares, Store&& store) {
  const DepthwiseAnyPlanes& planes = params.target_planes;
  const int32_t lanes = 1 << planes.lanes_log2, lane = static_cast<int32_t>(threadIdx.x) & (lanes - 1);
  const int32_t share_pitch = planes.floats();
  auto sum = [&]<int kPiece>(Constant<kPiece>, int32_t at) {
    using Sums = Vector<float, kPiece>;
    const float* from = depthwise_any_smem + params.sum_at + at;
    auto value = *reinterpret_cast<const Sums*>(from);
    for (int32_t share = 1; share < shares; ++share) {
      const auto more = *reinterpret_cast<const Sums*>(from + share * share_pitch);
#pragma unroll
      for (int e = 0; e < kPiece; ++e) value.data[e] += more.data[e];
    }
    return value;
  };
  const int32_t first_column = tile.column * params.w.target_step();
  const int32_t rows = tile.h.targets - tile.row;
  const int32_t columns = min(params.w.axis.target_extent - first_column, planes.slots_w);
  each_run(planes, [&](const DepthwiseAnyRun& run) {
    if (run.slot_h >= rows || run.channel >= channels || run.image >= images || run.slot_w >= columns) return;
    const int32_t row = tile.h.target + tile.h.target_step * (tile.row + run.slot_h);
    if (planes.channels_inner) {
      for (int32_t i = lane; i < channels; i += lanes) {
        store(i, run.image, row, first_column + run.slot_w, sum(Constant<1>{}, run.at + i * planes.plane_pitch));
      }
    } else {
      with_piece(planes, [&]<int kPiece>(Constant<kPiece> piece) {
        for (int32_t i = kPiece * lane; i < columns; i += kPiece * lanes) {
          store(run.channel, run.image, row, first_column + i, sum(piece, run.at + i));
        }
      });
    }
  });
}

// Where a thread's sums of a strand lie in shared memory. No other thread has these before the block adds up shares.
template <int kRows, int kColumns>
struct PlaceOfSums {
  float* first;
  int32_t row_pitch, step;

  // Each of them becomes f(what it was, the thread's sum).
  template <typename F>
  __device__ __forceinline__ void update(const float (&sums)[kRows][kColumns], F&& f) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float* to = first + r * row_pitch;
      if (step == 1) {
#pragma unroll
        for (int k = 0; k < kColumns; k += 4) {
          float4& four = *reinterpret_cast<float4*>(to + k);
          const float (&with)[kColumns] = sums[r];
          four =
              make_float4(f(four.x, with[k]), f(four.y, with[k + 1]), f(four.z, with[k + 2]), f(four.w, with[k + 3]));
        }
      } else {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) to[k * step] = f(to[k * step], sums[r][k]);
      }
    }
  }
  __device__ __forceinline__ void store(const float (&sums)[kRows][kColumns]) const {
    update(sums, [](float, float sum) { return sum; });
  }
  // Adds the sums, which begin anew.
  __device__ __forceinline__ void put_aside(float (&sums)[kRows][kColumns]) const {
    update(sums, [](float aside, float sum) { return aside + sum; });
#pragma unroll
    for (auto& row : sums) {
#pragma unroll
      for (float& sum : row) sum = 0;
    }
  }
};

// All products of one strand of columns.
template <typename T, int kRows, int kColumns>
__device__ __forceinline__ void add_strand(const DepthwiseAnyParams& params, const DepthwiseAnyTile& tile,
                                           const DepthwiseAnyStrand& strand, const DepthwiseAnyPlace& place,
                                           int32_t channels, const PlaceOfSums<kRows, kColumns>& aside) {
  const DepthwiseAnyPlanes &source_planes = params.source_planes, &tap_planes = params.tap_planes;
  // The slot of the source where the thread's first row of taps meets its first row of targets, and the warp's first
  // and last such slot.
  const int32_t first_slot = place.row + place.first_tap_row;
  const int32_t warp_first = warp_min(first_slot), warp_last = -warp_min(-first_slot);
  const int32_t source_of_thread =
      place.plane * source_planes.plane_pitch + first_slot * source_planes.row_pitch + place.column;
  const int32_t taps_of_thread = params.tap_at + (params.wgrad ? place.plane : place.channel) * tap_planes.plane_pitch +
                                 place.first_tap_row * tap_planes.row_pitch;

  float sums[kRows][kColumns] = {};
  if (params.wgrad && place.exists) aside.store(sums);

  auto stage = [&](const DepthwiseAnyStep& step, float* buffer) {
    stage_planes(tap_planes, params, static_cast<const T*>(params.taps), channels, params.wgrad ? step.first_image : 0,
                 params.wgrad ? step.images : 1, params.h.tap_span(tile.h, step.tap_h),
                 params.w.tap_span(strand, step.tap_w), buffer + params.tap_at,
                 [&](int32_t c) { return params.tap_channel(tile.channel + c, step.source_index); });
    stage_planes(source_planes, params, static_cast<const T*>(params.source), channels, step.first_image, step.images,
                 params.h.source_span(tile.h, tile.row, step.tap_h),
                 params.w.source_span(strand, tile.column, step.tap_w), buffer,
                 [&](int32_t c) { return params.source_channel(tile.channel + c, step.source_index); });
  };
  auto multiply = [&](const DepthwiseAnyStep& step, const float* buffer) {
    const DepthwiseAnySpan rows = params.h.source_span(tile.h, tile.row, step.tap_h);
    const int32_t tap_rows = params.h.tap_span(tile.h, step.tap_h).high;
    const int32_t tap_columns = params.w.tap_span(strand, step.tap_w).high;
    // The weight gradient leaves them out whatever dy is.
    const bool skips = params.skips_rows &&
                       (params.wgrad || finite_taps(params, buffer + params.tap_at, tap_rows, tap_columns, channels));
    if (!place.exists) return;
    for (int32_t of_class = 0; of_class < params.h.classes(); ++of_class) {
      const int32_t taps = params.h.slots_before(tap_rows, of_class);
      const int32_t count = min(params.part_rows, taps - place.first_tap_row);
      int32_t a = 0, last = count > 0 ? count + kRows - 1 : 0;
      if (skips) {
        a = max(a, params.h.slots_before(rows.low, of_class) - warp_last);
        last = min(last, params.h.slots_before(rows.high, of_class) - warp_first);
      }
      const float* source = buffer + source_of_thread + of_class * params.h.source_slots() * source_planes.row_pitch;
      const float* with = buffer + taps_of_thread + of_class * params.h.tap_slots() * tap_planes.row_pitch;
      for (int32_t of_columns = 0; of_columns < params.w.classes(); ++of_columns) {
        const int32_t slots = params.w.slots_before(tap_columns, of_columns);
        for (int32_t chunk = 0; chunk < slots; chunk += kDepthwiseAnyChunk) {
          for (int32_t run = a; run < last; run += params.run_rows) {
            with_chunk(slots - chunk, [&]<int kTaps>(Constant<kTaps>) {
              add_rows<kTaps>(sums, source + of_columns * source_planes.class_pitch + chunk, source_planes.row_pitch,
                              with + of_columns * tap_planes.class_pitch + chunk, tap_planes.row_pitch, run,
                              min(last, run + params.run_rows), count);
            });
            if (params.wgrad) aside.put_aside(sums);
          }
        }
      }
    }
  };

  const int32_t ahead = params.tiling.buffers - 1;
  const int32_t end = tile.h.taps > 0 && strand.taps > 0 ? tile.end : tile.begin;
  auto buffer_of = [&](int32_t number) { return depthwise_any_smem + (number & ahead) * params.buffer_pitch; };
  for (int32_t number = tile.begin; number < end + ahead; ++number) {
    if (number < end) stage(DepthwiseAnyStep(params, tile, number), buffer_of(number));
    ptx::async_copy_commit();
    const int32_t now = number - ahead;
    if (now < tile.begin) continue;
    if (ahead > 0) {
      ptx::async_copy_wait<1>();
    } else {
      ptx::async_copy_wait<0>();
    }
    __syncthreads();
    multiply(DepthwiseAnyStep(params, tile, now), buffer_of(now));
    __syncthreads();  // the buffer is written again, and may be where sums are stored
  }
  if (!params.wgrad && place.exists) aside.store(sums);
}

template <typename T, int kRows, int kColumns>
__global__ void __launch_bounds__(kDepthwiseAnyThreads, 4)
    depthwise_any(const __grid_constant__ DepthwiseAnyParams params) {
  ptx::follow_previous_kernel();
  constexpr DepthwiseAnyConfig kConfig{kRows, kColumns};
  const DepthwiseAnyTile tile(params, static_cast<int32_t>(blockIdx.x));
  if (!tile.exists()) return;
  const DepthwiseAnyPlace place(params, kConfig, static_cast<int32_t>(threadIdx.x));
  const int32_t channels = min(params.tiling.channels, params.channels - tile.channel);
  const DepthwiseAnyPlanes& targets = params.target_planes;
  float* const row_of_thread = depthwise_any_smem + params.sum_at + place.share * targets.floats() +
                               (params.wgrad ? place.channel : place.plane) * targets.plane_pitch +
                               place.row * targets.row_pitch;

  const int32_t step = params.w.target_step();
  for (int32_t i = 0; i < params.w.all_strands(); ++i) {
    const DepthwiseAnyStrand strand = params.w.strand(i);
    if (tile.column >= strand.targets) continue;
    const PlaceOfSums<kRows, kColumns> aside{row_of_thread + place.column * step + strand.target, targets.row_pitch,
                                             step};
    add_strand<T>(params, tile, strand, place, channels, aside);
  }
  __syncthreads();

  const int32_t shares = params.tiling.parts * (params.wgrad ? params.tiling.images : 1);
  const int32_t first_image = params.wgrad ? 0 : tile.group * params.tiling.images;
  const int32_t images = params.wgrad ? 1 : min(params.tiling.images, params.images - first_image);
  const Strides& strides = targets.strides;
  each_target(params, tile, channels, images, shares,
              [&](int32_t channel, int32_t image, int32_t row, int32_t column, const auto& sums) {
                constexpr int kPiece = sizeof(sums) / sizeof(float);
                channel += tile.channel;
                if (params.sums != nullptr) {
                  float* to = params.sums + tile.group * params.slice_sums + column +
                              (int64_t{channel} * params.h.axis.target_extent + row) * params.w.axis.target_extent;
#pragma unroll
                  for (int e = 0; e < kPiece; ++e) to[e] = sums.data[e];
                  return;
                }
                const FilterEpilogue<float> finish = Epilogue<T>(params.epilogue).of(channel);
                Vector<T, kPiece> rounded;
#pragma unroll
                for (int e = 0; e < kPiece; ++e) rounded.data[e] = narrow<T>(finish(sums.data[e]));
                *reinterpret_cast<Vector<T, kPiece>*>(static_cast<T*>(params.target) +
                                                      (first_image + image) * strides.n + channel * strides.c +
                                                      row * strides.h + column * strides.w) = rounded;
              });
}

}  // namespace fastconv
