// The kernels of norm/batch_norm.h. Template arguments: kVector elements are read at once, whose channels may differ if
// kPerElement. kCurved: the activation does more than cut off; backward also one that does not, where a residual was
// added and there is no mask.
#pragma once

#include "fastconv/norm/batch_norm.h"
#include "fastconv/norm/sums.cuh"
#include "fastconv/norm/walk.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/activation.cuh"

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
template <typename Acc, int kVector>
__device__ __forceinline__ uint32_t passing(const CutOff<Acc>& cut_off, const Acc (&z)[kVector]) {
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) bits |= static_cast<uint32_t>(cut_off.passes(z[j])) << j;
  return bits;
}

// x; x and a residual; x, the gradient of y and maybe a residual.
template <typename T, int kVector>
using MomentsRing = NormRing<T, kVector, 1, 8>;
template <typename T, int kVector>
using ApplyRing = NormRing<T, kVector, 2, 4>;
template <typename T, int kVector, bool kCurved>
using GradientRing = NormRing<T, kVector, kCurved ? 3 : 2, kCurved ? 2 : 4>;

// ---- forward ----

template <typename T, int kVector>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    norm_moments(const __grid_constant__ NormWalk walk, const void* x, Accumulator<T>* partial) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  using Vector = NormVector<T, kVector>;
  using Ring = MomentsRing<T, kVector>;
  Ring& ring = Ring::shared();
  const NormPlace place(walk, kVector);
  NormMoments<Acc> moments[kVector] = {};
  Acc count{0};
  each_vector<Ring::kDepth, false>(
      place, [&](int stage, int64_t offset) { ring.fetch(stage, 0, x, offset); },
      [&](int stage, int64_t) {
        const Vector values = ring(stage, 0);
        count += Acc{1};
        const Acc rcp = Acc{1} / count;
#pragma unroll
        for (int j = 0; j < kVector; ++j) moments[j].add(values[j], rcp);
      });
#pragma unroll
  for (int j = 0; j < kVector; ++j) moments[j].count = count;
  store_sums(place, moments, ring, partial);
}

struct FinishMoments {
  int64_t channels, parts, of_channel;
  NormParameter running_mean, running_var;
  double momentum, eps;
  const int64_t* batches;
};
template <typename T>
__global__ void __launch_bounds__(kFinishLanes* kFinishStrands)
    norm_finish_moments(const __grid_constant__ FinishMoments params, const Accumulator<T>* partial,
                        Accumulator<T>* statistics) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  const int64_t channel = int64_t{blockIdx.x} * kFinishLanes + threadIdx.x % kFinishLanes;
  const auto total = total_of<NormMoments<Acc>>(partial, channel, params.channels, params.parts);
  if (channel >= params.channels || threadIdx.x >= kFinishLanes) return;
  const Acc variance = total.squares / static_cast<Acc>(params.of_channel);
  statistics[channel] = total.mean;
  statistics[params.channels + channel] = inverse_deviation(variance, static_cast<Acc>(params.eps));
  const Acc momentum =
      params.momentum >= 0 ? static_cast<Acc>(params.momentum) : Acc{1} / static_cast<Acc>(*params.batches + 1);
  const Acc unbiased = total.squares / static_cast<Acc>(params.of_channel - 1);
  const Acc old_mean = read<T>(params.running_mean, channel, Acc{0}), kept = Acc{1} - momentum;
  write<T>(params.running_mean, channel, kept * old_mean + momentum * total.mean);
  const Acc old_var = read<T>(params.running_var, channel, Acc{0});
  write<T>(params.running_var, channel, kept * old_var + momentum * unbiased);
}

struct NormApply {
  NormWalk walk;
  const void *x, *residual;
  NormParameter weight, bias, mean, variance;  // the last two: null where the statistics are known
  Activation activation;
  double eps;
  int64_t* batches;
  void* y;
  uint8_t* mask;
};
template <typename T, int kVector, bool kPerElement, bool kCurved>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    norm_apply(const __grid_constant__ NormApply params, Accumulator<T>* statistics) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  using Vector = NormVector<T, kVector>;
  constexpr int kChannels = kPerElement ? kVector : 1;
  const NormWalk& walk = params.walk;
  const NormPlace place(walk, kVector);
  if (params.batches != nullptr && blockIdx.x == 0 && threadIdx.x == 0) ++*params.batches;
  NormChannel<Acc> channels[kChannels];
  if (place.works()) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const int64_t channel = place.channel(place.in_tile + j);
      const bool known = params.variance.data == nullptr;
      const Acc mean = known ? statistics[channel] : read<T>(params.mean, channel, Acc{0});
      const Acc invstd =
          known ? statistics[walk.channels + channel]
                : inverse_deviation(read<T>(params.variance, channel, Acc{1}), static_cast<Acc>(params.eps));
      if (!known && place.slice == 0) statistics[channel] = mean, statistics[walk.channels + channel] = invstd;
      channels[j] = norm_channel<T>(mean, invstd, params.weight, params.bias, channel);
    }
  }
  const CutOff<Acc> cut_off(params.activation);
  using Ring = ApplyRing<T, kVector>;
  Ring& ring = Ring::shared();
  each_vector<Ring::kDepth, true>(
      place,
      [&](int stage, int64_t offset) {
        ring.fetch(stage, 0, params.x, offset);
        if (params.residual != nullptr) ring.fetch(stage, 1, params.residual, offset);
      },
      [&](int stage, int64_t offset) {
        const Vector x = ring(stage, 0);
        Acc z[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) z[j] = channels[kPerElement ? j : 0](x[j]);
        if (params.residual != nullptr) {
          const Vector residual = ring(stage, 1);
#pragma unroll
          for (int j = 0; j < kVector; ++j) z[j] += residual[j];
        }
        if (!kCurved && params.mask != nullptr) {
          params.mask[offset / kVector] = static_cast<uint8_t>(passing(cut_off, z));
        }
        if constexpr (kCurved) Curves<sizeof(T) == 2>::activate(params.activation, z);
        Vector y;
#pragma unroll
        for (int j = 0; j < kVector; ++j) y.set(j, kCurved ? z[j] : cut_off(z[j]));
        y.store(params.y, offset);
      });
}

// ---- backward ----

// The gradient before the activation, of what the backward kernels read.
struct NormGradient {
  NormWalk walk;
  const void *x, *residual, *grad_y;
  const uint8_t* mask;
  NormParameter weight, bias;
  Activation activation;
};
template <typename T, int kVector, bool kPerElement, bool kCurved>
struct NormGradientReader {
  using Acc = Accumulator<T>;
  using Vector = NormVector<T, kVector>;
  static constexpr int kChannels = kPerElement ? kVector : 1;
  using Ring = GradientRing<T, kVector, kCurved>;
  const NormGradient& params;
  Ring& ring;
  const CutOff<Acc> cut_off;
  uint32_t bits[Ring::kDepth];
  NormChannel<Acc> channels[kChannels];

  __device__ NormGradientReader(const NormGradient& params, const NormPlace& place, const Acc* statistics)
      : params(params), ring(Ring::shared()), cut_off(params.activation) {
    if (!place.works()) return;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const int64_t channel = place.channel(place.in_tile + j);
      channels[j] = norm_channel<T>(statistics[channel], statistics[params.walk.channels + channel], params.weight,
                                    params.bias, channel);
    }
  }
  __device__ __forceinline__ void fetch(int stage, int64_t offset) {
    ring.fetch(stage, 0, params.x, offset);
    ring.fetch(stage, 1, params.grad_y, offset);
    if constexpr (kCurved) {
      if (params.residual != nullptr) ring.fetch(stage, 2, params.residual, offset);
    } else {
      if (params.mask != nullptr) bits[stage] = params.mask[offset / kVector];
    }
  }
  __device__ __forceinline__ const NormChannel<Acc>& channel(int j) const { return channels[kPerElement ? j : 0]; }
  __device__ __forceinline__ void gradients(int stage, const Vector& x, Acc (&grad)[kVector]) const {
    const Vector grad_y = ring(stage, 1);
#pragma unroll
    for (int j = 0; j < kVector; ++j) grad[j] = grad_y[j];
    if (params.activation == Activation::kNone) return;
    if (!kCurved && params.mask != nullptr) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) grad[j] = bits[stage] >> j & 1 ? grad[j] : Acc{0};
      return;
    }
    Acc z[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) z[j] = channel(j)(x[j]);
    if constexpr (kCurved) {
      if (params.residual != nullptr) {
        const Vector residual = ring(stage, 2);
#pragma unroll
        for (int j = 0; j < kVector; ++j) z[j] += residual[j];
      }
      Curves<sizeof(T) == 2>::slopes(params.activation, z);
#pragma unroll
      for (int j = 0; j < kVector; ++j) grad[j] *= z[j];
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) grad[j] = cut_off.passes(z[j]) ? grad[j] : Acc{0};
    }
  }
};

template <typename T, int kVector, bool kPerElement, bool kCurved>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    norm_gradient_sums(const __grid_constant__ NormGradient params, const Accumulator<T>* statistics,
                       Accumulator<T>* partial) {
  ptx::follow_previous_kernel();
  using Reader = NormGradientReader<T, kVector, kPerElement, kCurved>;
  const NormPlace place(params.walk, kVector);
  Reader reader(params, place, statistics);
  NormGradients<Accumulator<T>> sums[kVector] = {};
  each_vector<Reader::Ring::kDepth, false>(
      place, [&](int stage, int64_t offset) { reader.fetch(stage, offset); },
      [&](int stage, int64_t) {
        const auto x = reader.ring(stage, 0);
        Accumulator<T> grad[kVector];
        reader.gradients(stage, x, grad);
#pragma unroll
        for (int j = 0; j < kVector; ++j) sums[j].add({grad[j], grad[j] * (x[j] - reader.channel(j).mean)});
      });
  store_sums(place, sums, reader.ring, partial);
}

// The sums over a channel, for norm_gradient_apply in the place of the partial ones, and the parameters' gradients.
template <typename T>
__global__ void __launch_bounds__(kFinishLanes* kFinishStrands)
    norm_finish_gradients(int64_t channels, int64_t parts, const Accumulator<T>* partial,
                          const Accumulator<T>* statistics, Accumulator<T>* sums, NormParameter grad_weight,
                          NormParameter grad_bias) {
  ptx::follow_previous_kernel();
  const int64_t channel = int64_t{blockIdx.x} * kFinishLanes + threadIdx.x % kFinishLanes;
  const auto total = total_of<NormGradients<Accumulator<T>>>(partial, channel, channels, parts);
  if (channel >= channels || threadIdx.x >= kFinishLanes) return;
  total.store(sums + channel, channels);
  write<T>(grad_weight, channel, total.times_distance * statistics[channels + channel]);
  write<T>(grad_bias, channel, total.plain);
}

// sums: null where the statistics are not the batch's.
template <typename T, int kVector, bool kPerElement, bool kCurved>
__global__ void __launch_bounds__(kNormThreads, kNormBlocks)
    norm_gradient_apply(const __grid_constant__ NormGradient params, const Accumulator<T>* statistics,
                        const Accumulator<T>* sums, Accumulator<T> per_element, void* grad_x, void* grad_residual) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  using Reader = NormGradientReader<T, kVector, kPerElement, kCurved>;
  using Vector = typename Reader::Vector;
  const NormPlace place(params.walk, kVector);
  Reader reader(params, place, statistics);
  // grad_x = scale * gradient + slope * (x - mean) + shift
  Acc slopes[Reader::kChannels] = {}, shifts[Reader::kChannels] = {};
  if (sums != nullptr && place.works()) {
#pragma unroll
    for (int j = 0; j < Reader::kChannels; ++j) {
      const int64_t channel = place.channel(place.in_tile + j);
      const NormChannel<Acc>& norm = reader.channel(j);
      shifts[j] = -norm.scale * per_element * sums[channel];
      slopes[j] = -norm.scale * per_element * norm.invstd * norm.invstd * sums[params.walk.channels + channel];
    }
  }
  each_vector<Reader::Ring::kDepth, true>(
      place, [&](int stage, int64_t offset) { reader.fetch(stage, offset); },
      [&](int stage, int64_t offset) {
        const Vector x = reader.ring(stage, 0);
        Acc grad[kVector];
        reader.gradients(stage, x, grad);
        Vector result;
        if (grad_residual != nullptr) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) result.set(j, grad[j]);
          result.store(grad_residual, offset);
        }
        if (grad_x == nullptr) return;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const int of = kPerElement ? j : 0;
          const NormChannel<Acc>& norm = reader.channel(j);
          result.set(j, norm.scale * grad[j] + (slopes[of] * (x[j] - norm.mean) + shifts[of]));
        }
        result.store(grad_x, offset);
      });
}

}  // namespace fastconv
