// Stores a tile of sums in the output's own strides.
#pragma once

#include "fastconv/families/implicit_gemm/simt_mainloop.cuh"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

// The axis of the product on which four outputs lie side by side, aligned to one access; kNone if that is not known.
enum class OutputRun : int8_t { kNone, kAlongM, kAlongN };

// Where a tile's outputs go, in shared memory. An output lies at m[row] + n[column]; either is negative where there is
// none.
template <typename Acc, typename Config>
struct OutputTable {
  int64_t m[Config::kM], n[Config::kN];
  EpilogueTable<Acc, Config::kN> filter;
};

// With `accumulate` what is there is added to the sums.
template <typename Config, typename T, typename Acc>
__device__ __forceinline__ void store_tile(const Acc (&acc)[Config::kThreadM][Config::kThreadN],
                                           const OutputTable<Acc, Config>& table, T* base, OutputRun run,
                                           bool accumulate) {
  const ThreadTile<Config> thread;
  constexpr int kRun = Config::kRun;
  // Stores outputs (i, j), (i + di, j + dj), ..., kCount of them side by side.
  auto store = [&](auto count, int i, int j, int di, int dj) {
    constexpr int kCount = decltype(count)::value;
    const int64_t offset_m = table.m[thread.m(i)], offset_n = table.n[thread.n(j)];
    if (offset_m < 0 || offset_n < 0) return;
    auto* place = reinterpret_cast<Vector<T, kCount>*>(base + offset_m + offset_n);
    Vector<T, kCount> value{};
    if (accumulate) value = *place;
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const Acc sum = acc[i + r * di][j + r * dj] + (accumulate ? widen(value.data[r]) : Acc{0});
      value.data[r] = narrow<T>(table.filter(thread.n(j + r * dj))(sum));
    }
    *place = value;
  };
  // Keeps the compiler from fetching every place and old value first, which would spill the sums.
  auto in_turn = [] { asm volatile("" ::: "memory"); };
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, kRun> kFour;
  if (run == OutputRun::kAlongM) {
#pragma unroll
    for (int j = 0; j < Config::kThreadN; ++j) {
#pragma unroll
      for (int i = 0; i < Config::kThreadM; i += kRun) store(kFour, i, j, 1, 0);
      in_turn();
    }
  } else if (run == OutputRun::kAlongN) {
#pragma unroll
    for (int i = 0; i < Config::kThreadM; ++i) {
#pragma unroll
      for (int j = 0; j < Config::kThreadN; j += kRun) store(kFour, i, j, 0, 1);
      in_turn();
    }
  } else {
#pragma unroll
    for (int j = 0; j < Config::kThreadN; ++j) {
#pragma unroll
      for (int i = 0; i < Config::kThreadM; ++i) store(kOne, i, j, 0, 0);
      in_turn();
    }
  }
}

}  // namespace fastconv
