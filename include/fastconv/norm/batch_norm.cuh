// The kernels of norm/batch_norm.h. kCurved: the activation does more than cut off.
#pragma once

#include "fastconv/norm/batch_norm.h"
#include "fastconv/norm/sums.cuh"
#include "fastconv/norm/walk.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/activation.cuh"
#include "fastconv/tile/grid_barrier.cuh"

namespace fastconv {

template <typename T>
__device__ __forceinline__ Accumulator<T> read(const NormParameter& parameter, int64_t channel,
                                               Accumulator<T> otherwise) {
  using Acc = Accumulator<T>;
  if (parameter.data == nullptr) return otherwise;
  return parameter.wide ? static_cast<const Acc*>(parameter.data)[channel]
                        : widen(static_cast<const T*>(parameter.data)[channel]);
}
template <typename T>
__device__ __forceinline__ void write(const NormParameter& parameter, int64_t channel, Accumulator<T> value) {
  using Acc = Accumulator<T>;
  if (parameter.data == nullptr) return;
  if (parameter.wide) {
    static_cast<Acc*>(parameter.data)[channel] = value;
  } else {
    static_cast<T*>(parameter.data)[channel] = narrow<T>(value);
  }
}

// Of a channel: z = (x - mean) * scale + shift.
template <typename Acc>
struct NormChannel {
  Acc mean, invstd, scale, shift;

  __device__ __forceinline__ Acc operator()(Acc x) const { return (x - mean) * scale + shift; }
};
template <typename T>
__device__ __forceinline__ NormChannel<Accumulator<T>> norm_channel(Accumulator<T> mean, Accumulator<T> invstd,
                                                                    const NormParameter& weight,
                                                                    const NormParameter& bias, int64_t channel) {
  using Acc = Accumulator<T>;
  return {mean, invstd, invstd * read<T>(weight, channel, Acc{1}), read<T>(bias, channel, Acc{0})};
}
template <typename Acc>
__device__ __forceinline__ Acc inverse_deviation(Acc variance, Acc eps) {
  return Acc{1} / sqrt(variance + eps);
}

// A bit of each element.
template <typename Acc, int kCount>
__device__ __forceinline__ uint32_t passing(const CutOff<Acc>& cut_off, const Acc (&z)[kCount]) {
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) bits |= static_cast<uint32_t>(cut_off.passes(z[j])) << j;
  return bits;
}

// The activation's derivative: 1 or 0 by x or a mask; a curve's by x; any one's by x and a residual.
enum class NormSlopes { kCutOff, kCurve, kSum };

// x; x and a residual; x, the gradient of y and maybe a residual.
template <typename T>
using MomentsRing = NormRing<T, 1, kNormRingVectors>;
template <typename T>
using ApplyRing = NormRing<T, 2, kNormRingVectors / 2>;
template <typename T, NormSlopes kSlopes>
using GradientRing =
    NormRing<T, kSlopes == NormSlopes::kSum ? 3 : 2, kNormRingVectors / (kSlopes == NormSlopes::kSum ? 4 : 2)>;

// The parts of a call that a launch does. Its blocks wait for each other between two parts, so all must run at once.
struct NormPhases {
  bool sums, end, images;
};

// ---- forward ----

template <typename T, NormReads kReads>
__device__ __forceinline__ void add_moments(const NormPlace& place, const BatchNormForward& call) {
  using Acc = Accumulator<T>;
  using Vector = NormVector<T>;
  using Ring = MomentsRing<T>;
  Ring& ring = Ring::shared();
  NormMoments<Acc> moments[Vector::kCount] = {};
  Acc count{0};
  each_vector<Ring, false, kReads>(
      place, [&](int stage, const NormItem& item) { ring.template fetch<kReads>(place.walk, stage, 0, call.x, item); },
      [] {},
      [&](int stage, const NormItem& item) {
        const Vector values = ring(stage, 0);
        if constexpr (kReads == NormReads::kApart) {
#pragma unroll
          for (int j = 0; j < Vector::kCount; ++j) {
            if (!item.template has<kReads>(j)) continue;
            moments[j].count += Acc{1};
            moments[j].add(values[j], reciprocal(moments[j].count));
          }
        } else {
          count += Acc{1};
          const Acc rcp = reciprocal(count);
#pragma unroll
          for (int j = 0; j < Vector::kCount; ++j) moments[j].add(values[j], rcp);
        }
      });
  if constexpr (kReads != NormReads::kApart) {
#pragma unroll
    for (int j = 0; j < Vector::kCount; ++j) moments[j].count = count;
  }
  store_sums<kReads>(place, moments, ring, static_cast<Acc*>(call.workspace));
}

template <typename T, typename Ring>
__device__ __forceinline__ void finish_moments(const NormWalk& walk, const BatchNormForward& call) {
  using Acc = Accumulator<T>;
  auto* statistics = static_cast<Acc*>(call.statistics);
  const Acc momentum =
      call.momentum >= 0 ? static_cast<Acc>(call.momentum) : Acc{1} / static_cast<Acc>(*call.batches + 1);
  each_total<NormMoments<Acc>>(
      walk, Ring::shared(), call.workspace, [&](int64_t channel, const NormMoments<Acc>& total) {
        statistics[channel] = total.mean;
        statistics[walk.channels + channel] =
            inverse_deviation(total.squares / total.count, static_cast<Acc>(call.eps));
        const Acc unbiased = total.squares / (total.count - Acc{1});
        const Acc old_mean = read<T>(call.running_mean, channel, Acc{0}), kept = Acc{1} - momentum;
        write<T>(call.running_mean, channel, kept * old_mean + momentum * total.mean);
        const Acc old_var = read<T>(call.running_var, channel, Acc{0});
        write<T>(call.running_var, channel, kept * old_var + momentum * unbiased);
      });
}

template <typename T, NormReads kReads, bool kCurved>
__device__ __forceinline__ void apply_norm(const NormPlace& place, const BatchNormForward& call) {
  using Acc = Accumulator<T>;
  using Vector = NormVector<T>;
  constexpr int kChannels = kReads == NormReads::kChannels ? Vector::kCount : 1;
  auto* statistics = static_cast<Acc*>(call.statistics);
  const int64_t of_deviations = place.walk.channels;
  NormChannel<Acc> channels[kChannels];
  const auto start = [&] {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const int64_t channel = place.channel(place.in_tile + j);
      Acc mean, invstd;
      if (call.training) {
        mean = statistics[channel], invstd = statistics[of_deviations + channel];
      } else {
        mean = read<T>(call.running_mean, channel, Acc{0});
        invstd = inverse_deviation(read<T>(call.running_var, channel, Acc{1}), static_cast<Acc>(call.eps));
        if (place.slice == 0) statistics[channel] = mean, statistics[of_deviations + channel] = invstd;
      }
      channels[j] = norm_channel<T>(mean, invstd, call.weight, call.bias, channel);
    }
  };
  const CutOff<Acc> cut_off(call.activation);
  using Ring = ApplyRing<T>;
  Ring& ring = Ring::shared();
  each_vector<Ring, true, kReads>(
      place,
      [&](int stage, const NormItem& item) {
        ring.template fetch<kReads>(place.walk, stage, 0, call.x, item);
        if (call.residual != nullptr) ring.template fetch<kReads>(place.walk, stage, 1, call.residual, item);
      },
      start,
      [&](int stage, const NormItem& item) {
        const Vector x = ring(stage, 0);
        Acc z[Vector::kCount];
#pragma unroll
        for (int j = 0; j < Vector::kCount; ++j) z[j] = channels[kChannels > 1 ? j : 0](x[j]);
        if (call.residual != nullptr) {
          const Vector residual = ring(stage, 1);
#pragma unroll
          for (int j = 0; j < Vector::kCount; ++j) z[j] += residual[j];
        }
        if (!kCurved && call.mask != nullptr) {
          store_bits<T, kReads>(place.walk, call.mask, item, passing(cut_off, z));
        }
        if constexpr (kCurved) Curves<sizeof(T) == 2>::activate(call.activation, z);
        Vector y;
#pragma unroll
        for (int j = 0; j < Vector::kCount; ++j) y.set(j, kCurved ? z[j] : cut_off(z[j]));
        y.template store<kReads>(place.walk, call.y, item);
      });
}

template <typename T, NormReads kReads, bool kCurved>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    norm_forward(const __grid_constant__ NormWalk walk, const __grid_constant__ BatchNormForward call,
                 NormPhases phases) {
  ptx::follow_previous_kernel();
  if (phases.sums) {
    each_place<T, kReads, false>(walk, [&](const NormPlace& place) { add_moments<T, kReads>(place, call); });
    if (phases.end) sync_grid</*kTma=*/false>();
  }
  if (phases.end) {
    finish_moments<T, MomentsRing<T>>(walk, call);
    if (phases.images) sync_grid</*kTma=*/false>();
  }
  if (!phases.images) return;
  if (call.training && call.batches != nullptr && blockIdx.x == 0 && threadIdx.x == 0) ++*call.batches;
  each_place<T, kReads, true>(walk, [&](const NormPlace& place) { apply_norm<T, kReads, kCurved>(place, call); });
}

// ---- backward ----

// The gradient before the activation.
template <typename T, NormReads kReads, NormSlopes kSlopes>
struct NormGradientReader {
  using Acc = Accumulator<T>;
  using Vector = NormVector<T>;
  static constexpr int kChannels = kReads == NormReads::kChannels ? Vector::kCount : 1;
  using Ring = GradientRing<T, kSlopes>;
  const BatchNormBackward& call;
  const NormWalk& walk;
  Ring& ring;
  const CutOff<Acc> cut_off;
  uint32_t bits[Ring::kDepth];
  NormChannel<Acc> channels[kChannels];

  __device__ NormGradientReader(const BatchNormBackward& call, const NormWalk& walk)
      : call(call), walk(walk), ring(Ring::shared()), cut_off(call.activation) {}
  __device__ __forceinline__ void load_channels(const NormPlace& place) {
    const auto* statistics = static_cast<const Acc*>(call.statistics);
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const int64_t channel = place.channel(place.in_tile + j);
      channels[j] =
          norm_channel<T>(statistics[channel], statistics[walk.channels + channel], call.weight, call.bias, channel);
    }
  }
  __device__ __forceinline__ void fetch(int stage, const NormItem& item) {
    ring.template fetch<kReads>(walk, stage, 0, call.x, item);
    ring.template fetch<kReads>(walk, stage, 1, call.grad_y, item);
    if constexpr (kSlopes == NormSlopes::kSum) ring.template fetch<kReads>(walk, stage, 2, call.residual, item);
    if (kSlopes == NormSlopes::kCutOff && call.mask != nullptr) {
      bits[stage] = load_bits<T, kReads>(walk, call.mask, item);
    }
  }
  __device__ __forceinline__ const NormChannel<Acc>& channel(int j) const { return channels[kChannels > 1 ? j : 0]; }
  __device__ __forceinline__ void gradients(int stage, const Vector& x, Acc (&grad)[Vector::kCount]) const {
    const Vector grad_y = ring(stage, 1);
#pragma unroll
    for (int j = 0; j < Vector::kCount; ++j) grad[j] = grad_y[j];
    if (call.activation == Activation::kNone) return;
    if (kSlopes == NormSlopes::kCutOff && call.mask != nullptr) {
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j) grad[j] = bits[stage] >> j & 1 ? grad[j] : Acc{0};
      return;
    }
    Acc z[Vector::kCount];
#pragma unroll
    for (int j = 0; j < Vector::kCount; ++j) z[j] = channel(j)(x[j]);
    if constexpr (kSlopes == NormSlopes::kSum) {
      const Vector residual = ring(stage, 2);
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j) z[j] += residual[j];
    }
    if constexpr (kSlopes != NormSlopes::kCutOff) {
      Curves<sizeof(T) == 2>::slopes(call.activation, z);
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j) grad[j] *= z[j];
    } else {
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j) grad[j] = cut_off.passes(z[j]) ? grad[j] : Acc{0};
    }
  }
};

template <typename T, NormReads kReads, NormSlopes kSlopes>
__device__ __forceinline__ void add_gradients(const NormPlace& place, const BatchNormBackward& call) {
  using Acc = Accumulator<T>;
  using Reader = NormGradientReader<T, kReads, kSlopes>;
  Reader reader(call, place.walk);
  NormGradients<Acc> sums[Reader::Vector::kCount] = {};
  each_vector<typename Reader::Ring, false, kReads>(
      place, [&](int stage, const NormItem& item) { reader.fetch(stage, item); }, [&] { reader.load_channels(place); },
      [&](int stage, const NormItem& item) {
        const auto x = reader.ring(stage, 0);
        Acc grad[Reader::Vector::kCount];
        reader.gradients(stage, x, grad);
#pragma unroll
        for (int j = 0; j < Reader::Vector::kCount; ++j) {
          if (!item.template has<kReads>(j)) continue;  // the ring has what was there before
          sums[j].add({grad[j], grad[j] * (x[j] - reader.channel(j).mean)});
        }
      });
  store_sums<kReads>(place, sums, reader.ring, static_cast<Acc*>(call.workspace));
}

// The sums over a channel, behind the partial ones, and the parameters' gradients.
template <typename T, typename Ring>
__device__ __forceinline__ void finish_gradients(const NormWalk& walk, const BatchNormBackward& call) {
  using Acc = Accumulator<T>;
  using Sums = NormGradients<Acc>;
  const auto* statistics = static_cast<const Acc*>(call.statistics);
  Acc* sums = sums_behind<Sums>(walk, call.workspace);
  each_total<Sums>(walk, Ring::shared(), call.workspace, [&](int64_t channel, const Sums& total) {
    total.store(sums + channel, walk.channels);
    write<T>(call.grad_weight, channel, total.times_distance * statistics[walk.channels + channel]);
    write<T>(call.grad_bias, channel, total.plain);
  });
}

template <typename T, NormReads kReads, NormSlopes kSlopes>
__device__ __forceinline__ void apply_gradients(const NormPlace& place, const BatchNormBackward& call) {
  const NormWalk& walk = place.walk;
  using Acc = Accumulator<T>;
  using Reader = NormGradientReader<T, kReads, kSlopes>;
  using Vector = typename Reader::Vector;
  Reader reader(call, walk);
  // grad_x = scale * gradient + slope * (x - mean) + shift
  const bool sums = call.sums_for_input();
  Acc slopes[Reader::kChannels] = {}, shifts[Reader::kChannels] = {};
  const auto start = [&] {
    reader.load_channels(place);
    if (!sums) return;
    const Acc* totals = sums_behind<NormGradients<Acc>>(walk, call.workspace);
    const Acc per_element = static_cast<Acc>(walk.channels) / static_cast<Acc>(walk.total);
#pragma unroll
    for (int j = 0; j < Reader::kChannels; ++j) {
      const int64_t channel = place.channel(place.in_tile + j);
      const NormChannel<Acc>& norm = reader.channel(j);
      shifts[j] = -norm.scale * per_element * totals[channel];
      slopes[j] = -norm.scale * per_element * norm.invstd * norm.invstd * totals[walk.channels + channel];
    }
  };
  each_vector<typename Reader::Ring, true, kReads>(
      place, [&](int stage, const NormItem& item) { reader.fetch(stage, item); }, start,
      [&](int stage, const NormItem& item) {
        const Vector x = reader.ring(stage, 0);
        Acc grad[Vector::kCount];
        reader.gradients(stage, x, grad);
        Vector result;
        if (call.grad_residual != nullptr) {
#pragma unroll
          for (int j = 0; j < Vector::kCount; ++j) result.set(j, grad[j]);
          result.template store<kReads>(walk, call.grad_residual, item);
        }
        if (call.grad_x == nullptr) return;
#pragma unroll
        for (int j = 0; j < Vector::kCount; ++j) {
          const int of = Reader::kChannels > 1 ? j : 0;
          const NormChannel<Acc>& norm = reader.channel(j);
          Acc of_sums{0};  // slopes of zero would make NaN of an infinite x
          if (sums) of_sums = slopes[of] * (x[j] - norm.mean) + shifts[of];
          result.set(j, norm.scale * grad[j] + of_sums);
        }
        result.template store<kReads>(walk, call.grad_x, item);
      });
}

template <typename T, NormReads kReads, NormSlopes kSlopes>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    norm_backward(const __grid_constant__ NormWalk walk, const __grid_constant__ BatchNormBackward call,
                  NormPhases phases) {
  ptx::follow_previous_kernel();
  if (phases.sums) {
    each_place<T, kReads, false>(walk, [&](const NormPlace& place) { add_gradients<T, kReads, kSlopes>(place, call); });
    if (phases.end) sync_grid</*kTma=*/false>();
  }
  if (phases.end) {
    finish_gradients<T, GradientRing<T, kSlopes>>(walk, call);
    if (phases.images) sync_grid</*kTma=*/false>();
  }
  if (!phases.images) return;
  each_place<T, kReads, true>(walk, [&](const NormPlace& place) { apply_gradients<T, kReads, kSlopes>(place, call); });
}

}  // namespace fastconv
