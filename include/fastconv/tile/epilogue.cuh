// Turns a tile of sums into output: bias, conversion, stores in the output's own strides.
#pragma once

#include "fastconv/tile/element.cuh"
#include "fastconv/tile/mainloop_simt.cuh"

namespace fastconv {

// The axis of the product on which four outputs lie side by side, aligned to one access; kNone if that is not known.
enum class OutputRun : int8_t { kNone, kAlongM, kAlongN };

// `out` gives offset_m(row) and offset_n(column), whose sum is an output's place, either negative where there is none,
// and bias(column). With `accumulate` the sums are added to what is there, which then already has its bias.
template <typename Config, typename T, typename Acc, typename Out>
__device__ __forceinline__ void epilogue(const Acc (&acc)[Config::kThreadM][Config::kThreadN], const Out& out, T* base,
                                         OutputRun run, bool accumulate) {
  const ThreadTile<Config> thread;
  constexpr int kRun = Config::kRun;
  auto finish = [&](Acc sum, const T& old, Acc bias) { return narrow<T>(sum + (accumulate ? widen(old) : bias)); };

  if (run == OutputRun::kAlongM) {
#pragma unroll
    for (int i = 0; i < Config::kThreadM; i += kRun) {
      const int64_t offset_m = out.offset_m(thread.m(i));
#pragma unroll
      for (int j = 0; j < Config::kThreadN; ++j) {
        const int64_t offset_n = out.offset_n(thread.n(j));
        if (offset_m < 0 || offset_n < 0) continue;
        auto* place = reinterpret_cast<Vector<T, kRun>*>(base + offset_m + offset_n);
        Vector<T, kRun> value;
        if (accumulate) value = *place;
        const Acc bias = out.bias(thread.n(j));
#pragma unroll
        for (int r = 0; r < kRun; ++r) value.data[r] = finish(acc[i + r][j], value.data[r], bias);
        *place = value;
      }
    }
  } else if (run == OutputRun::kAlongN) {
#pragma unroll
    for (int i = 0; i < Config::kThreadM; ++i) {
      const int64_t offset_m = out.offset_m(thread.m(i));
#pragma unroll
      for (int j = 0; j < Config::kThreadN; j += kRun) {
        const int64_t offset_n = out.offset_n(thread.n(j));
        if (offset_m < 0 || offset_n < 0) continue;
        auto* place = reinterpret_cast<Vector<T, kRun>*>(base + offset_m + offset_n);
        Vector<T, kRun> value;
        if (accumulate) value = *place;
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          value.data[r] = finish(acc[i][j + r], value.data[r], out.bias(thread.n(j + r)));
        }
        *place = value;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Config::kThreadM; ++i) {
      const int64_t offset_m = out.offset_m(thread.m(i));
#pragma unroll
      for (int j = 0; j < Config::kThreadN; ++j) {
        const int64_t offset_n = out.offset_n(thread.n(j));
        if (offset_m < 0 || offset_n < 0) continue;
        T* place = base + offset_m + offset_n;
        T old{};
        if (accumulate) old = *place;
        *place = finish(acc[i][j], old, out.bias(thread.n(j)));
      }
    }
  }
}

}  // namespace fastconv
