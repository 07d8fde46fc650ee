// Convolution in groups too narrow for a matrix product. What the windows of a block of positions see is packed into a
// cache's worth of accumulators, zeros where there is no image, so that in memory
//   a vector is either as many groups at one pixel, if they have one channel each and those lie side by side,
//   or as many columns of one channel, for one group at a time;
//   the next vector of a row of positions follows, whatever the stride: columns that agree modulo the stride are packed
//   side by side.
// A tap is then a shift: positions + shift are what it multiplies, whichever the vectors are.
#include <cmath>
#include <memory>
#include <vector>

#include "fastconv/core/integers.h"
#include "fastconv/cpu/im2col.h"
#include "fastconv/cpu/kernels.h"
#include "fastconv/cpu/lowering.h"
#include "fastconv/cpu/simd.h"
#include "fastconv/cpu/work_queue.h"

namespace fastconv {
namespace {

constexpr int64_t kBlock = 1 << 15;  // packed elements, if more than one row of positions is computed
constexpr int64_t kMaxRows = 32;
constexpr int64_t kMaxCols = 512;         // of columns as vectors
constexpr int64_t kMaxColsOfGroups = 64;  // of groups as vectors
// Groups of an item: their pixels share cache lines in channels_last.
constexpr int64_t kGroups = 16, kGroupsSideBySide = 64;
constexpr int64_t kTargetItems = 32;
constexpr int kUnroll = 8;      // sums in registers
constexpr int64_t kChain = 64;  // products added one after the other: a longer sum has a larger error

// What taps see along one dimension, each pixel once where they overlap.
struct Axis {
  struct Segment {
    int64_t slot, length, pixel;  // slots slot, slot + 1, ... are pixels pixel, pixel + step, ...
  };
  int64_t step, slots = 0;
  std::vector<Segment> segments;
  std::vector<int64_t> tap_slots;  // position i sees the pixel of slot tap_slots[tap] + i

  Axis(int64_t first, int64_t positions, int64_t taps, int64_t step, int64_t tap_step, int64_t origin)
      : step(step), tap_slots(static_cast<size_t>(taps)) {
    std::vector<size_t> segment_of(static_cast<size_t>(taps));
    for (int64_t i = 0; i < taps; ++i) {
      const auto tap = static_cast<size_t>(tap_step > 0 ? i : taps - 1 - i);  // from left to right
      const int64_t pixel = first * step + static_cast<int64_t>(tap) * tap_step + origin;
      size_t at = segments.size();
      for (size_t back = 1; back <= segments.size() && static_cast<int64_t>(back) <= step; ++back) {
        const Segment& segment = segments[segments.size() - back];
        const int64_t distance = pixel - segment.pixel;
        if (distance % step == 0 && distance / step <= segment.length) at = segments.size() - back;
      }
      if (at == segments.size()) segments.push_back({0, 0, pixel});
      segment_of[tap] = at;
      tap_slots[tap] = (pixel - segments[at].pixel) / step;
      segments[at].length = tap_slots[tap] + positions;
    }
    for (Segment& segment : segments) segment.slot = slots, slots += segment.length;
    for (size_t tap = 0; tap < tap_slots.size(); ++tap) tap_slots[tap] += segments[segment_of[tap]].slot;
  }
};

constexpr int64_t kFewCols = 32;

bool side_by_side(const Lowering& lowering) {
  return lowering.channels == 1 && lowering.m == 1 && (lowering.image_group == 1 || lowering.cols < kFewCols);
}

// How positions are cut into blocks: of an image, then rows, then columns.
struct Blocks {
  bool groups;  // are the lanes of vectors
  int64_t rows, cols, row_blocks, col_blocks, count;

  explicit Blocks(const Lowering& lowering) : groups(side_by_side(lowering)) {
    cols = std::min(lowering.cols, groups ? kMaxColsOfGroups : kMaxCols);
    rows = std::min(lowering.rows, kMaxRows);
    const Axis x(0, cols, lowering.s, lowering.step.w, lowering.tap_step.w, 0);
    const int64_t row_elements = lowering.channels * x.slots * (groups ? 8 : 1);
    while (rows > 1 &&
           Axis(0, rows, lowering.r, lowering.step.h, lowering.tap_step.h, 0).slots * row_elements > kBlock) {
      rows = ceil_div(rows, 2);
    }
    row_blocks = ceil_div(lowering.rows, rows), col_blocks = ceil_div(lowering.cols, cols);
    count = lowering.images * row_blocks * col_blocks;
  }
};

template <class Scalar>
struct Buffer {
  std::unique_ptr<AlignedBuffer<Scalar>> memory;
  int64_t size = 0;

  Scalar* get(int64_t elements) {
    if (elements > size) memory = std::make_unique<AlignedBuffer<Scalar>>(size = elements);
    return memory->data();
  }
};
template <class Scalar>
struct Scratch {
  Buffer<Scalar> image, target, weights, sums;
  std::vector<int64_t> vectors, shifts;
};

template <class T>
struct Job {
  const ConvProblem& problem;
  const ConvBuffers& buffers;
  const Lowering& lowering;
  const Blocks& blocks;
  int64_t block_begin, block_end, group_begin, group_end;

  T* image() const { return static_cast<T*>(problem.pass == Pass::kDgrad ? buffers.y : buffers.x); }
  T* target() const { return static_cast<T*>(problem.pass == Pass::kDgrad ? buffers.x : buffers.y); }
  T* filter() const { return static_cast<T*>(buffers.w); }
  const T* bias() const {
    return problem.pass == Pass::kFprop && problem.has_bias ? static_cast<const T*>(buffers.bias) : nullptr;
  }
};

// A block of positions, and where its parts lie in the packed image.
template <class Isa, class T>
struct Packed {
  using Scalar = Accumulator<T>;
  static constexpr int64_t kLanes = VectorOf<Isa, Scalar>::kLanes;

  const Lowering& lowering;
  const bool groups;  // are the lanes
  int64_t n, row, col, rows, cols;
  int64_t row_vectors;
  Axis y, x;
  int64_t width;  // of a packed row

  FASTCONV_INLINE Packed(const Job<T>& job, int64_t block)
      : lowering(job.lowering),
        groups(job.blocks.groups),
        n(block / job.blocks.row_blocks / job.blocks.col_blocks),
        row(block / job.blocks.col_blocks % job.blocks.row_blocks * job.blocks.rows),
        col(block % job.blocks.col_blocks * job.blocks.cols),
        rows(std::min(job.blocks.rows, lowering.rows - row)),
        cols(std::min(job.blocks.cols, lowering.cols - col)),
        row_vectors(groups ? cols : ceil_div(cols, kLanes)),
        y(row, rows, lowering.r, lowering.step.h, lowering.tap_step.h, lowering.origin.h),
        x(col, cols, lowering.s, lowering.step.w, lowering.tap_step.w, lowering.origin.w),
        width(round_up(groups ? x.slots * kLanes : x.slots + kLanes, kLanes)) {}

  FASTCONV_INLINE int64_t vectors() const { return rows * row_vectors; }
  FASTCONV_INLINE int64_t lanes(const Job<T>& job, int64_t group) const {
    return groups ? std::min(kLanes, job.group_end - group) : 1;
  }

  FASTCONV_INLINE void fill_offsets(Scratch<Scalar>& scratch) const {
    scratch.vectors.clear();
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < row_vectors; ++j) scratch.vectors.push_back(i * width + j * kLanes);
    }
    scratch.shifts.clear();
    for (int64_t c = 0; c < lowering.channels; ++c) {
      for (const int64_t slot : y.tap_slots) {
        for (const int64_t column : x.tap_slots) {
          scratch.shifts.push_back((c * y.slots + slot) * width + column * (groups ? kLanes : 1));
        }
      }
    }
    // The last group of them is as long as the others, for the sake of a loop of constant length.
    while (scratch.vectors.size() % kUnroll != 0) scratch.vectors.push_back(scratch.vectors.back());
    while (scratch.shifts.size() % kUnroll != 0) scratch.shifts.push_back(scratch.shifts.back());
  }

  // The image of the groups from `group` on that are lanes, or of one.
  FASTCONV_INLINE void pack_image(Scalar* to, const T* image, int64_t lanes) const {
    const int64_t unit = groups ? kLanes : 1;
    for (int64_t c = 0; c < lowering.channels; ++c) {
      for (const Axis::Segment& line : y.segments) {
        for (int64_t i = 0; i < line.length; ++i) {
          const int64_t h = line.pixel + i * y.step;
          Scalar* packed = to + (c * y.slots + line.slot + i) * width;
          if (h < 0 || h >= lowering.image_size.h) {
            fill_zero(packed, width);
            continue;
          }
          const T* from = image + (n * lowering.image.n + c * lowering.image.c + h * lowering.image.h);
          for (const Axis::Segment& part : x.segments) {
            Scalar* start = packed + part.slot * unit;
            // Of the segment, [first, last) lie inside the image.
            const int64_t first =
                std::clamp<int64_t>(part.pixel < 0 ? ceil_div(-part.pixel, x.step) : 0, 0, part.length);
            const int64_t beyond = lowering.image_size.w - part.pixel;
            const int64_t last = std::clamp<int64_t>(beyond > 0 ? ceil_div(beyond, x.step) : 0, first, part.length);
            fill_zero(start, first * unit);
            const T* pixel = from + (part.pixel + first * x.step) * lowering.image.w;
            copy_vectors(start + first * unit, pixel, last - first, x.step * lowering.image.w, lanes,
                         lowering.image_group);
            fill_zero(start + last * unit, (part.length - last) * unit);
          }
          fill_zero(packed + x.slots * unit, width - x.slots * unit);
        }
      }
    }
  }
  // Rows of the target, zeros in what completes vectors.
  FASTCONV_INLINE void pack_target(Scalar* to, const T* target, int64_t lanes) const {
    for (int64_t i = 0; i < rows; ++i, to += row_vectors * kLanes) {
      copy_vectors(to, target + target_offset(i), cols, lowering.target.w, lanes, lowering.target_group);
      if (!groups) fill_zero(to + cols, row_vectors * kLanes - cols);
    }
  }
  FASTCONV_INLINE int64_t target_offset(int64_t i) const {
    return lowering.target_origin + n * lowering.target.n + (row + i) * lowering.target.h + col * lowering.target.w;
  }

 private:
  FASTCONV_INLINE void copy_vectors(Scalar* to, const T* from, int64_t count, int64_t step, int64_t lanes,
                                    int64_t lane_step) const {
    if (!groups) return copy_row(to, from, count, step);
    if (lanes == kLanes && lane_step == 1) {
      for (int64_t i = 0; i < count; ++i, to += kLanes, from += step) copy_row(to, from, kLanes, 1);
    } else if (lanes == kLanes) {
      for (int64_t i = 0; i < count; ++i, to += kLanes, from += step) copy_row(to, from, kLanes, lane_step);
    } else {
      for (int64_t i = 0; i < count; ++i, to += kLanes, from += step) {
        copy_row(to, from, lanes, lane_step);
        fill_zero(to + lanes, kLanes - lanes);
      }
    }
  }
};

// fprop and dgrad: blocks of positions of some groups.
template <class T>
struct FilterImage {
  using Scalar = Accumulator<T>;

  template <class Isa>
  FASTCONV_INLINE static void run(const Job<T>& job, Scratch<Scalar>& scratch) {
    const Lowering& lowering = job.lowering;
    for (int64_t block = job.block_begin; block < job.block_end; ++block) {
      const Packed<Isa, T> packed(job, block);
      constexpr int64_t kLanes = Packed<Isa, T>::kLanes;
      if (packed.rows <= 0 || packed.cols <= 0) continue;  // this phase has fewer
      packed.fill_offsets(scratch);
      Scalar* image = scratch.image.get(lowering.channels * packed.y.slots * packed.width + kLanes);
      Scalar* weights = scratch.weights.get((lowering.taps() + 1) * kLanes);
      Scalar* sums = scratch.sums.get(static_cast<int64_t>(scratch.vectors.size()) * kLanes);
      for (int64_t group = job.group_begin; group < job.group_end;) {
        const int64_t lanes = packed.lanes(job, group);
        packed.pack_image(image, job.image() + group * lowering.image_group, lanes);
        for (int64_t m = 0; m < lowering.m; ++m) {
          fill_weights<kLanes>(weights, job.filter() + group * lowering.filter_group + m * lowering.filter.n, lowering,
                               packed.groups, lanes);
          filter<Isa>(sums, image, weights, scratch, lowering.taps());
          const T* bias = job.bias() ? job.bias() + group * lowering.m + m : nullptr;
          if (bias) add_bias<kLanes>(sums, bias, packed.groups ? lanes : 1, packed.vectors());
          store(job, packed, sums, group, m, lanes, bias);
        }
        group += lanes;
      }
    }
  }

  template <int64_t kLanes>
  FASTCONV_INLINE static void fill_weights(Scalar* to, const T* filter, const Lowering& lowering, bool groups,
                                           int64_t lanes) {
    for (int64_t c = 0; c < lowering.channels; ++c) {
      for (int64_t r = 0; r < lowering.r; ++r) {
        for (int64_t s = 0; s < lowering.s; ++s, to += kLanes) {
          const T* from =
              filter + (lowering.filter_origin + c * lowering.filter.c + r * lowering.filter.h + s * lowering.filter.w);
          for (int64_t i = 0; i < kLanes; ++i) {
            to[i] = groups ? i < lanes ? static_cast<Scalar>(from[i * lowering.filter_group]) : 0
                           : static_cast<Scalar>(*from);
          }
        }
      }
    }
  }

  template <class Isa>
  FASTCONV_INLINE static void filter(Scalar* sums, const Scalar* image, const Scalar* weights,
                                     const Scratch<Scalar>& scratch, int64_t taps) {
    using Vector = typename VectorOf<Isa, Scalar>::Type;
    constexpr int64_t kLanes = VectorOf<Isa, Scalar>::kLanes;
    const int64_t* shifts = scratch.shifts.data();
    for (size_t i = 0; i < scratch.vectors.size(); i += kUnroll) {
      const Scalar* from[kUnroll];
      for (int j = 0; j < kUnroll; ++j) from[j] = image + scratch.vectors[i + static_cast<size_t>(j)];
      Vector sum[kUnroll] = {};
      for (int64_t tap = 0; tap < taps; ++tap) {
        const Vector weight = *reinterpret_cast<const Vector*>(weights + tap * kLanes);
        const int64_t shift = shifts[tap];
        for (int j = 0; j < kUnroll; ++j) sum[j] += weight * *reinterpret_cast<const Vector*>(from[j] + shift);
      }
      auto* to = reinterpret_cast<Vector*>(sums + static_cast<int64_t>(i) * kLanes);
      for (int j = 0; j < kUnroll; ++j) to[j] = sum[j];
    }
  }

  template <int64_t kLanes>
  FASTCONV_INLINE static void add_bias(Scalar* sums, const T* bias, int64_t lanes, int64_t vectors) {
    Scalar shift[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) shift[i] = static_cast<Scalar>(bias[lanes == 1 ? 0 : std::min(i, lanes - 1)]);
    for (int64_t j = 0; j < vectors; ++j, sums += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) sums[i] += shift[i];
    }
  }

  template <class Isa>
  FASTCONV_INLINE static void store(const Job<T>& job, const Packed<Isa, T>& packed, const Scalar* sums, int64_t group,
                                    int64_t m, int64_t lanes, const T* bias) {
    constexpr int64_t kLanes = Packed<Isa, T>::kLanes;
    const Lowering& lowering = job.lowering;
    T* target = job.target() + group * lowering.target_group + m * lowering.target.c;
    int nans = 0;
    for (int64_t i = 0; i < packed.vectors() * kLanes; ++i) nans |= !(sums[i] == sums[i]);
    for (int64_t i = 0; i < packed.rows; ++i, sums += packed.row_vectors * kLanes) {
      T* to = target + packed.target_offset(i);
      const int64_t step = lowering.target.w;
      if (!packed.groups) {
        store_row(to, step, sums, packed.cols);
      } else if (lanes == kLanes && lowering.target_group == 1) {
        for (int64_t q = 0; q < packed.cols; ++q) store_row(to + q * step, 1, sums + q * kLanes, kLanes);
      } else if (lanes == kLanes) {
        for (int64_t q = 0; q < packed.cols; ++q) {
          store_row(to + q * step, lowering.target_group, sums + q * kLanes, kLanes);
        }
      } else {
        for (int64_t q = 0; q < packed.cols; ++q) {
          store_row(to + q * step, lowering.target_group, sums + q * kLanes, lanes);
        }
      }
      if (nans == 0) continue;
      for (int64_t q = 0; q < packed.cols; ++q) {
        for (int64_t lane = 0; lane < lanes; ++lane) {
          T& value = to[q * step + lane * lowering.target_group];
          if (!std::isnan(static_cast<Scalar>(value)) || (bias && std::isnan(static_cast<Scalar>(bias[lane]))))
            continue;
          const Scalar sum = by_definition<T>(job.problem, job.buffers, packed.n, (group + lane) * lowering.m + m,
                                              lowering.pixel.h + (packed.row + i) * lowering.pixel_step.h,
                                              lowering.pixel.w + (packed.col + q) * lowering.pixel_step.w);
          value = static_cast<T>(sum + (bias ? static_cast<Scalar>(bias[lane]) : 0));
        }
      }
    }
  }
  FASTCONV_INLINE static void store_row(T* to, int64_t step, const Scalar* from, int64_t size) {
    if (step == 1) {
      for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(from[i]);
    } else {
      for (int64_t i = 0; i < size; ++i) to[i * step] = static_cast<T>(from[i]);
    }
  }
};

// wgrad: sums over some blocks, for some groups. `result` is [groups][m][taps], of all groups.
template <class T>
struct CorrelateImage {
  using Scalar = Accumulator<T>;

  template <class Isa>
  FASTCONV_INLINE static void run(const Job<T>& job, Scratch<Scalar>& scratch, Scalar* result) {
    const Lowering& lowering = job.lowering;
    const int64_t taps = lowering.taps(), group_size = lowering.m * taps;
    fill_zero(result + job.group_begin * group_size, (job.group_end - job.group_begin) * group_size);
    for (int64_t block = job.block_begin; block < job.block_end; ++block) {
      const Packed<Isa, T> packed(job, block);
      constexpr int64_t kLanes = Packed<Isa, T>::kLanes;
      packed.fill_offsets(scratch);
      Scalar* image = scratch.image.get(lowering.channels * packed.y.slots * packed.width + kLanes);
      Scalar* target = scratch.target.get(packed.vectors() * kLanes);
      Scalar* sums = scratch.sums.get(static_cast<int64_t>(scratch.shifts.size()) * kLanes);
      for (int64_t group = job.group_begin; group < job.group_end;) {
        const int64_t lanes = packed.lanes(job, group);
        packed.pack_image(image, job.image() + group * lowering.image_group, lanes);
        for (int64_t m = 0; m < lowering.m; ++m) {
          packed.pack_target(target, job.target() + group * lowering.target_group + m * lowering.target.c, lanes);
          correlate<Isa>(sums, image, target, scratch, packed.vectors());
          Scalar* to = result + group * group_size + m * taps;
          for (int64_t tap = 0; tap < taps; ++tap) {
            const Scalar* vector = sums + tap * kLanes;
            if (packed.groups) {
              for (int64_t lane = 0; lane < lanes; ++lane) to[lane * group_size + tap] += vector[lane];
            } else {
              Scalar sum = 0;
              for (int64_t lane = 0; lane < kLanes; ++lane) sum += vector[lane];
              to[tap] += sum;
            }
          }
        }
        group += lanes;
      }
    }
  }

  template <class Isa>
  FASTCONV_INLINE static void correlate(Scalar* sums, const Scalar* image, const Scalar* target,
                                        const Scratch<Scalar>& scratch, int64_t vectors) {
    using Vector = typename VectorOf<Isa, Scalar>::Type;
    constexpr int64_t kLanes = VectorOf<Isa, Scalar>::kLanes;
    for (size_t tap = 0; tap < scratch.shifts.size(); tap += kUnroll) {
      const Scalar* from[kUnroll];
      for (int j = 0; j < kUnroll; ++j) from[j] = image + scratch.shifts[tap + static_cast<size_t>(j)];
      Vector total[kUnroll] = {};
      for (int64_t first = 0; first < vectors; first += kChain) {
        Vector sum[kUnroll] = {};
        for (int64_t i = first; i < std::min(first + kChain, vectors); ++i) {
          const Vector value = *reinterpret_cast<const Vector*>(target + i * kLanes);
          const int64_t shift = scratch.vectors[static_cast<size_t>(i)];
          for (int j = 0; j < kUnroll; ++j) sum[j] += value * *reinterpret_cast<const Vector*>(from[j] + shift);
        }
        for (int j = 0; j < kUnroll; ++j) total[j] += sum[j];
      }
      auto* to = reinterpret_cast<Vector*>(sums + static_cast<int64_t>(tap) * kLanes);
      for (int j = 0; j < kUnroll; ++j) to[j] = total[j];
    }
  }
};

template <class T>
void filter_image(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime) {
  const Lowering lowering = lower(problem, 0);  // no phase has more positions
  const Blocks blocks(lowering);
  const int64_t at_once = side_by_side(lowering) ? kGroupsSideBySide : kGroups;
  const int64_t group_blocks = ceil_div(problem.groups, at_once);
  const int64_t cost =
      blocks.rows * blocks.cols * std::min(at_once, problem.groups) * lowering.m * (lowering.taps() + 2) / 4;
  for_each_item(runtime, blocks.count * group_blocks, cost, [&] {
    return [&, scratch = std::make_unique<Scratch<Accumulator<T>>>()](int64_t item) {
      const int64_t block = item / group_blocks, group = item % group_blocks * at_once;
      // Pixels of all phases share cache lines.
      for (int64_t phase = 0; phase < phase_count(problem); ++phase) {
        const Lowering part = lower(problem, phase);
        const Job<T> job{problem, buffers,   part,  blocks,
                         block,   block + 1, group, std::min(group + at_once, problem.groups)};
        call_best([&]<class Isa>(Isa) FASTCONV_INLINE_BODY { FilterImage<T>::template run<Isa>(job, *scratch); });
      }
    };
  });
}

template <class T>
void correlate_image(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime) {
  using Scalar = Accumulator<T>;
  const Lowering lowering = lower(problem, 0);
  const Blocks blocks(lowering);
  const int64_t at_once = side_by_side(lowering) ? kGroupsSideBySide : kGroups;
  const int64_t group_blocks = ceil_div(problem.groups, at_once);
  const int64_t parts =
      std::clamp<int64_t>(kTargetItems / std::max<int64_t>(group_blocks, 1), 1, std::max<int64_t>(blocks.count, 1));
  const int64_t group_size = lowering.m * lowering.taps();
  const int64_t filter_size = problem.groups * group_size;
  AlignedBuffer<Scalar> partial(parts * filter_size);
  const int64_t cost = blocks.rows * blocks.cols * ceil_div(blocks.count, parts) * std::min(at_once, problem.groups) *
                       lowering.m * (lowering.taps() + 2) / 4;
  for_each_item(runtime, group_blocks * parts, cost, [&] {
    return [&, scratch = std::make_unique<Scratch<Scalar>>()](int64_t item) {
      const int64_t part = item % parts, group = item / parts * at_once;
      Job<T> job{problem,
                 buffers,
                 lowering,
                 blocks,
                 blocks.count * part / parts,
                 blocks.count * (part + 1) / parts,
                 group,
                 std::min(group + at_once, problem.groups)};
      Scalar* sums = partial.data() + part * filter_size;
      call_best([&]<class Isa>(Isa)
                    FASTCONV_INLINE_BODY { CorrelateImage<T>::template run<Isa>(job, *scratch, sums); });
    };
  });
  for_each_item(runtime, problem.groups, group_size * parts, [&] {
    return [&](int64_t group) {
      T* filter = static_cast<T*>(buffers.w) + group * lowering.filter_group;
      int64_t witness = 0;
      for (int64_t i = 0; i < group_size; ++i) {
        Scalar sum = 0;
        for (int64_t part = 0; part < parts; ++part) sum += partial.data()[part * filter_size + group * group_size + i];
        const int64_t s = i % lowering.s, r = i / lowering.s % lowering.r;
        const int64_t c = i / lowering.s / lowering.r % lowering.channels, m = i / lowering.taps();
        if (std::isnan(sum)) sum = by_definition<T>(problem, buffers, group * lowering.m + m, c, r, s, &witness);
        filter[m * lowering.filter.n + c * lowering.filter.c + r * lowering.filter.h + s * lowering.filter.w] =
            static_cast<T>(sum);
      }
    };
  });
}

}  // namespace

template <class T>
void depthwise_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime) {
  if (problem.pass == Pass::kWgrad) {
    correlate_image<T>(problem, buffers, runtime);
  } else {
    filter_image<T>(problem, buffers, runtime);
  }
}

template void depthwise_cpu<float>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void depthwise_cpu<double>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void depthwise_cpu<Half>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);
template void depthwise_cpu<BFloat16>(const ConvProblem&, const ConvBuffers&, const CpuRuntime&);

}  // namespace fastconv
