// Convolution whose groups are too narrow for a matrix product's register block. The im2col matrix of a group and a
// block of positions is packed as in gemm.cpp; each row of the result is then a sum of its rows (fprop, dgrad), and
// each element of the filter's gradient a dot product with one of them.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "fastconv/core/integers.h"
#include "fastconv/cpu/kernels.h"
#include "fastconv/cpu/lowering.h"
#include "fastconv/cpu/pack.h"
#include "fastconv/cpu/simd.h"
#include "fastconv/cpu/work_queue.h"

namespace fastconv {
namespace {

constexpr int64_t kPositions = 256;  // packed at a time
constexpr int64_t kTaps = 64;        // packed at a time
// Groups computed by an item: neighbouring channels share cache lines in channels_last.
constexpr int64_t kGroups = 16;
constexpr int64_t kTargetItems = 32;
constexpr int64_t kMinPartPositions = 4096;

template <class Scalar>
struct Scratch {
  Scratch() : im2col(kTaps * kPositions), rows(kDepthwiseMaxChannels * kPositions), filter(kTaps) {}
  AlignedBuffer<Scalar> im2col, rows, filter;
  std::vector<Run> position_runs, tap_runs;
};

template <class T>
struct Job {
  Lowering lowering;
  Operands<T> operands;
  const T* bias;
  int64_t group_begin, group_end, position_begin, position_end;
};

// row[i] += sum over taps of filter[tap] * im2col[tap][i], partial sums formed in registers
template <class Isa, class Scalar>
FASTCONV_INLINE void add_weighted_rows(Scalar* row, const Scalar* im2col, const Scalar* filter, int64_t taps) {
  using Vector = typename VectorOf<Isa, Scalar>::Type;
  constexpr int kLanes = VectorOf<Isa, Scalar>::kLanes;
  constexpr int kUnroll = 4;
  for (int64_t i = 0; i < kPositions; i += kUnroll * kLanes) {
    Vector sum[kUnroll] = {};
    for (int64_t tap = 0; tap < taps; ++tap) {
      const auto* from = reinterpret_cast<const Vector*>(im2col + tap * kPositions + i);
      for (int j = 0; j < kUnroll; ++j) sum[j] += filter[tap] * from[j];
    }
    auto* to = reinterpret_cast<Vector*>(row + i);
    for (int j = 0; j < kUnroll; ++j) to[j] += sum[j];
  }
}

template <class Isa, class Scalar>
FASTCONV_INLINE Scalar dot(const Scalar* a, const Scalar* b) {
  using Vector = typename VectorOf<Isa, Scalar>::Type;
  constexpr int kLanes = VectorOf<Isa, Scalar>::kLanes;
  constexpr int kUnroll = 4;
  Vector sum[kUnroll] = {};
  for (int64_t i = 0; i < kPositions; i += kUnroll * kLanes) {
    const auto* x = reinterpret_cast<const Vector*>(a + i);
    const auto* y = reinterpret_cast<const Vector*>(b + i);
    for (int j = 0; j < kUnroll; ++j) sum[j] += x[j] * y[j];
  }
  const Vector lanes = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  Scalar total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  return total;
}

// fprop and dgrad: at most kPositions positions of some groups.
template <class T>
struct FilterImage {
  using Scalar = Accumulator<T>;

  template <class Isa>
  FASTCONV_INLINE static void run(const Job<T>& job, Scratch<Scalar>& scratch) {
    const Lowering& lowering = job.lowering;
    position_runs(lowering, job.position_begin, job.position_end, kPositions, scratch.position_runs);
    for (int64_t group = job.group_begin; group < job.group_end; ++group) {
      const T* image = job.operands.image + group * lowering.image_group;
      const T* filter = job.operands.filter + group * lowering.filter_group;
      T* target = job.operands.target + group * lowering.target_group;
      Scalar* rows = scratch.rows.data();
      fill_zero(rows, kPositions, lowering.m, kPositions);
      for (int64_t tap = 0; tap < lowering.taps(); tap += kTaps) {
        const int64_t taps = std::min(kTaps, lowering.taps() - tap);
        tap_runs(lowering, tap, tap + taps, kTaps, scratch.tap_runs);
        pack_im2col<kPositions, true>(scratch.im2col.data(), image, lowering, taps,
                                      std::span<const Run>(scratch.tap_runs),
                                      std::span<const Run>(scratch.position_runs));
        for (int64_t m = 0; m < lowering.m; ++m) {
          Scalar* weights = scratch.filter.data();
          for (const Run& run : scratch.tap_runs) {
            copy_in(weights + run.begin, 1, filter + (m * lowering.filter.n + run.other), run.length, 1, run.other_step,
                    1);
          }
          add_weighted_rows<Isa>(rows + m * kPositions, scratch.im2col.data(), weights, taps);
        }
      }
      for (const Run& run : scratch.position_runs) {
        copy_out(target + run.other, lowering.target.c, run.other_step, rows + run.begin, kPositions, lowering.m,
                 run.length, job.bias ? job.bias + group * lowering.m : nullptr);
      }
    }
  }
};

// wgrad: sums over a range of positions, for some groups. `sums` is [groups][m][taps], of all groups.
template <class T>
struct CorrelateImage {
  using Scalar = Accumulator<T>;

  template <class Isa>
  FASTCONV_INLINE static void run(const Job<T>& job, Scratch<Scalar>& scratch, Scalar*& sums) {
    const Lowering& lowering = job.lowering;
    const int64_t all_taps = lowering.taps();
    const int64_t group_size = lowering.m * all_taps;
    fill_zero(sums + job.group_begin * group_size, group_size, job.group_end - job.group_begin, group_size);
    for (int64_t begin = job.position_begin; begin < job.position_end; begin += kPositions) {
      const int64_t end = std::min(begin + kPositions, job.position_end);
      position_runs(lowering, begin, end, kPositions, scratch.position_runs);
      for (int64_t group = job.group_begin; group < job.group_end; ++group) {
        const T* image = job.operands.image + group * lowering.image_group;
        const T* target = job.operands.target + group * lowering.target_group;
        Scalar* rows = scratch.rows.data();
        fill_zero(rows + (end - begin), kPositions, lowering.m, kPositions - (end - begin));
        for (const Run& run : scratch.position_runs) {
          copy_in(rows + run.begin, kPositions, target + run.other, lowering.m, run.length, lowering.target.c,
                  run.other_step);
        }
        for (int64_t tap = 0; tap < all_taps; tap += kTaps) {
          const int64_t taps = std::min(kTaps, all_taps - tap);
          tap_runs(lowering, tap, tap + taps, kTaps, scratch.tap_runs);
          pack_im2col<kPositions, true>(scratch.im2col.data(), image, lowering, taps,
                                        std::span<const Run>(scratch.tap_runs),
                                        std::span<const Run>(scratch.position_runs));
          Scalar* sum = sums + group * group_size + tap;
          for (int64_t m = 0; m < lowering.m; ++m, sum += all_taps) {
            for (int64_t i = 0; i < taps; ++i) {
              sum[i] += dot<Isa>(rows + m * kPositions, scratch.im2col.data() + i * kPositions);
            }
          }
        }
      }
    }
  }
};

template <class T>
void filter_image(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for) {
  using Scalar = Accumulator<T>;
  const Lowering whole = lower(problem, 0);  // no phase has more positions
  const int64_t phases = phase_count(problem);
  const int64_t position_blocks = ceil_div(whole.positions(), kPositions);
  const int64_t group_blocks = ceil_div(problem.groups, kGroups);
  const T* bias = problem.pass == Pass::kFprop && problem.has_bias ? static_cast<const T*>(buffers.bias) : nullptr;
  const int64_t cost = kPositions * std::min(kGroups, problem.groups) * (whole.m + 2) * whole.taps();
  for_each_item(parallel_for, phases * group_blocks * position_blocks, cost, [&] {
    return [&, scratch = std::make_unique<Scratch<Scalar>>()](int64_t item) {
      Job<T> job = {
          lower(problem, item / position_blocks % phases), Operands<T>(problem.pass, buffers), bias, 0, 0, 0, 0};
      job.position_begin = item % position_blocks * kPositions;
      job.position_end = std::min(job.position_begin + kPositions, job.lowering.positions());
      if (job.position_begin >= job.position_end) return;  // this phase has fewer positions
      job.group_begin = item / position_blocks / phases * kGroups;
      job.group_end = std::min(job.group_begin + kGroups, problem.groups);
      call_best<FilterImage<T>>(job, *scratch);
    };
  });
}

template <class T>
void correlate_image(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for) {
  using Scalar = Accumulator<T>;
  const Lowering lowering = lower(problem, 0);
  const Operands<T> operands(problem.pass, buffers);
  const int64_t positions = lowering.positions();
  const int64_t group_blocks = ceil_div(problem.groups, kGroups);
  const int64_t target_parts = std::max<int64_t>(1, kTargetItems / std::max<int64_t>(1, group_blocks));
  const int64_t part_positions = std::max(kMinPartPositions, ceil_div(positions, target_parts));
  const int64_t parts = std::max<int64_t>(1, ceil_div(positions, part_positions));
  const int64_t group_size = lowering.m * lowering.taps();
  const int64_t filter_size = problem.groups * group_size;
  AlignedBuffer<Scalar> partial(parts * filter_size);

  const int64_t cost = part_positions * std::min(kGroups, problem.groups) * (lowering.m + 2) * lowering.taps();
  for_each_item(parallel_for, group_blocks * parts, cost, [&] {
    return [&, scratch = std::make_unique<Scratch<Scalar>>()](int64_t item) {
      const int64_t part = item % parts;
      Job<T> job = {lowering, operands, nullptr, 0, 0, 0, 0};
      job.position_begin = part * part_positions;
      job.position_end = std::min(job.position_begin + part_positions, positions);
      job.group_begin = item / parts * kGroups;
      job.group_end = std::min(job.group_begin + kGroups, problem.groups);
      Scalar* sums = partial.data() + part * filter_size;
      call_best<CorrelateImage<T>>(job, *scratch, sums);
    };
  });

  std::vector<Run> runs;
  tap_runs(lowering, 0, lowering.taps(), lowering.taps(), runs);
  for_each_item(parallel_for, problem.groups, group_size * parts, [&] {
    return [&](int64_t group) {
      Scalar* sum = partial.data() + group * group_size;
      for (int64_t part = 1; part < parts; ++part) {
        for (int64_t i = 0; i < group_size; ++i) sum[i] += sum[part * filter_size + i];
      }
      T* filter = operands.filter + group * lowering.filter_group;
      for (const Run& run : runs) {
        copy_out<T, Scalar>(filter + run.other, lowering.filter.n, run.other_step, sum + run.begin, lowering.taps(),
                            lowering.m, run.length, nullptr);
      }
    };
  });
}

}  // namespace

template <class T>
void depthwise_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for) {
  if (problem.pass == Pass::kWgrad) {
    correlate_image<T>(problem, buffers, parallel_for);
  } else {
    filter_image<T>(problem, buffers, parallel_for);
  }
}

template void depthwise_cpu<float>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);
template void depthwise_cpu<double>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);
template void depthwise_cpu<Half>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);
template void depthwise_cpu<BFloat16>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);

}  // namespace fastconv
