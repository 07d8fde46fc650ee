// What is summed of a channel.
#pragma once

#include <cstdint>

namespace fastconv {

// To an ulp or two. What it gives are shares of a distance from the mean, which is no more exact.
__device__ __forceinline__ float reciprocal(float x) { return __fdividef(1.f, x); }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

// Count, mean and squared distances from it, so that a mean far from zero costs no digits.
// Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
template <typename Acc>
struct NormMoments {
  using Value = Acc;
  static constexpr int kFields = 3;
  Acc count, mean, squares;

  // `rcp` is 1 / count once this one is in.
  __device__ __forceinline__ void add(Acc value, Acc rcp) {
    const Acc distance = value - mean;
    mean += distance * rcp;
    squares += distance * (value - mean);
  }
  __device__ __forceinline__ void add(const NormMoments& other) {
    if (other.count == Acc{0}) return;
    if (count == Acc{0}) {
      *this = other;  // below, a large mean's square times zero may be NaN
      return;
    }
    const Acc all = count + other.count, distance = other.mean - mean, share = other.count * reciprocal(all);
    squares += other.squares + distance * distance * count * share;
    mean += distance * share;
    count = all;
  }
  __device__ void store(Acc* to, int64_t step) const { to[0] = count, to[step] = mean, to[2 * step] = squares; }
  __device__ static NormMoments load(const Acc* from, int64_t step) { return {from[0], from[step], from[2 * step]}; }
};

// Of the gradient before the activation: itself, and times the distance from the mean.
template <typename Acc>
struct NormGradients {
  using Value = Acc;
  static constexpr int kFields = 2;
  Acc plain, times_distance;

  __device__ __forceinline__ void add(const NormGradients& other) {
    plain += other.plain, times_distance += other.times_distance;
  }
  __device__ void store(Acc* to, int64_t step) const { to[0] = plain, to[step] = times_distance; }
  __device__ static NormGradients load(const Acc* from, int64_t step) { return {from[0], from[step]}; }
};

}  // namespace fastconv
