// Emulated: see the header that this one hides. Sums are added one by one, in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "emulated/cuda.h"
#include "fastconv/ptx/matrix_descriptor.cuh"
#include "fastconv/ptx/mma.cuh"

namespace fastconv::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() { emulated::warpgroup_commit(); }
template <int kPending>
void wgmma_wait() {
  emulated::warpgroup_wait(kPending);
}

namespace wgmma_operand {

template <typename T>
float value_at(uint32_t address) {
  const char* const from = emulated::shared(address, sizeof(T));
  // Rows that no output needs may be anything.
  if (!emulated::is_fenced(address, sizeof(T))) return std::numeric_limits<float>::quiet_NaN();
  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t> bits;
  std::memcpy(&bits, from, sizeof(T));
  return value_of(T{}, bits);
}

// Value k of row, or column, mn of an operand.
template <typename T, Major kMajor>
float load(uint64_t descriptor, int mn, int k) {
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t block_pitch = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t group_pitch = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  const int swizzle = static_cast<int>(descriptor >> 62);
  if (swizzle == 0) {
    if (kMajor != Major::kK) emulated::fail("wgmma: an operand that is MN-major has a swizzle");
    const int byte = k * static_cast<int>(sizeof(T));
    return value_at<T>(start + mn / 8 * group_pitch + mn % 8 * 16 + byte / 16 * block_pitch + byte % 16);
  }
  const int row_bytes = 256 >> swizzle;
  const int row = kMajor == Major::kK ? mn : k, along = (kMajor == Major::kK ? k : mn) * static_cast<int>(sizeof(T));
  uint32_t address = start + row / 8 * group_pitch + row % 8 * row_bytes;
  address += kMajor == Major::kK ? along : along / row_bytes * block_pitch + along % row_bytes;
  return value_at<T>(address ^ ((address >> 7 & (row_bytes / 16 - 1)) << 4));
}

}  // namespace wgmma_operand

// What a thread brings to a product; a is 0 if it is in registers.
struct WgmmaOperands {
  float* d;
  uint64_t a, b;
  uint32_t registers[4];
  int accumulate;
};

// `left(row, k)` of the threads' operands.
template <typename T, Major kB, int kSums, typename Left>
void multiply(const char* operation, WgmmaOperands& mine, Left left) {
  constexpr int kN = 2 * kSums, kK = 32 / sizeof(T);
  emulated::meet(emulated::Scope::kWarpgroup, operation, &mine, [&](std::span<void*> brought) {
    std::vector<WgmmaOperands> threads;
    for (void* thread : brought) threads.push_back(*static_cast<WgmmaOperands*>(thread));
    const WgmmaOperands first = threads[0];
    for (const WgmmaOperands& thread : threads) {
      if (thread.b != first.b || thread.a != first.a || thread.accumulate != first.accumulate) {
        emulated::fail("wgmma: threads disagree");
      }
    }
    emulated::warpgroup_multiply([threads, left] {
      const WgmmaOperands& first = threads[0];
      float right[kK][kN];
      for (int k = 0; k < kK; ++k) {
        for (int n = 0; n < kN; ++n) right[k][n] = wgmma_operand::load<T, kB>(first.b, n, k);
      }
      for (int row = 0; row < 64; ++row) {
        float sums[kN] = {};
        // Four threads have a row, each two columns of every eight.
        const WgmmaOperands* const owners = &threads[row / 16 * 32 + row % 8 * 4];
        auto sum_of = [&](int n) -> float& { return owners[n % 8 / 2].d[n / 8 * 4 + row % 16 / 8 * 2 + n % 2]; };
        if (first.accumulate != 0) {
          for (int n = 0; n < kN; ++n) sums[n] = sum_of(n);
        }
        for (int k = 0; k < kK; ++k) {
          const float value = left(threads, row, k);
          for (int n = 0; n < kN; ++n) sums[n] += value * right[k][n];
        }
        for (int n = 0; n < kN; ++n) sum_of(n) = sums[n];
      }
    });
  });
}

template <typename T, Major kA, Major kB, int kSums>
void wgmma(float (&d)[kSums], uint64_t a, uint64_t b, int accumulate) {
  WgmmaOperands mine{d, a, b, {}, accumulate};
  multiply<T, kB, kSums>("wgmma", mine, [](const auto& threads, int row, int k) {
    return wgmma_operand::load<T, kA>(threads[0].a, row, k);
  });
}

template <typename T, Major kB, int kSums>
void wgmma(float (&d)[kSums], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  WgmmaOperands mine{d, 0, b, {a[0], a[1], a[2], a[3]}, accumulate};
  multiply<T, kB, kSums>("wgmma of registers", mine, [](const auto& threads, int row, int k) {
    const int byte = k * static_cast<int>(sizeof(T));
    const WgmmaOperands& owner = threads[row / 16 * 32 + row % 8 * 4 + byte % 16 / 4];
    return value_of(T{}, owner.registers[byte / 16 * 2 + row % 16 / 8] >> 8 * (byte % 4));
  });
}

}  // namespace fastconv::ptx
