// Emulated: see the header that this one hides. A unit of depth is 4 words; sums are added one by one, in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace fastconv::ptx {

inline float value_of(__half, uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
inline float value_of(__nv_bfloat16, uint16_t bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); }
inline float value_of(float, uint32_t bits) { return __uint_as_float(bits & ~0x1fffu); }  // of TF32
template <typename T>
inline constexpr int kWordValues = 4 / sizeof(T);

// What a lane brings to a product.
struct LaneOperands {
  float* d;
  const uint32_t *a, *b;
  const float* c;
  uint32_t places;
};
struct Sums {
  float at[16][8];

  explicit Sums(const std::array<LaneOperands*, 32>& lanes) {
    for (int i = 0; i < 32; ++i) {
      for (int k = 0; k < 4; ++k) at[i / 4 + k / 2 * 8][2 * (i % 4) + k % 2] = lanes[i]->c[k];
    }
  }
  void add(int row, float left, const float (&right)[8]) {
    for (int column = 0; column < 8; ++column) at[row][column] += left * right[column];
  }
  void give(const std::array<LaneOperands*, 32>& lanes) const {
    for (int i = 0; i < 32; ++i) {
      for (int k = 0; k < 4; ++k) lanes[i]->d[k] = at[i / 4 + k / 2 * 8][2 * (i % 4) + k % 2];
    }
  }
};
template <typename T, int kUnits>
struct Right {
  static constexpr int kValues = kWordValues<T>;  // of a word
  float at[4 * kValues * kUnits][8];

  explicit Right(const std::array<LaneOperands*, 32>& lanes) {
    for (int i = 0; i < 32; ++i) {
      for (int k = 0; k < kValues * kUnits; ++k) {
        const int unit = k / kValues, value = k % kValues;
        at[(unit * 4 + i % 4) * kValues + value][i / 4] = value_of(T{}, lanes[i]->b[unit] >> 16 * value);
      }
    }
  }
};
// The value of a row of a, of what lanes have of it.
template <typename T>
float left_of(const std::array<LaneOperands*, 32>& lanes, int row, int k) {
  const int word = k / kWordValues<T>;
  return value_of(T{}, lanes[row % 8 * 4 + word % 4]->a[word / 4 * 2 + row / 8] >> 16 * (k % kWordValues<T>));
}

template <typename T, int kUnits>
void multiply(const char* operation, float (&d)[4], const uint32_t (&a)[2 * kUnits], const uint32_t (&b)[kUnits],
              const float (&c)[4]) {
  LaneOperands mine{d, a, b, c, 0};
  emulated::with_warp(operation, mine, [](const auto& lanes) {
    Sums sums(lanes);
    const Right<T, kUnits> right(lanes);
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 4 * kWordValues<T> * kUnits; ++k) sums.add(row, left_of<T>(lanes, row, k), right.at[k]);
    }
    sums.give(lanes);
  });
}
template <typename T>
void mma(T, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4]) {
  multiply<T, 2>("mma of 16", d, a, {b0, b1}, c);
}
template <typename T>
void mma(T, float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, const float (&c)[4]) {
  multiply<T, 1>("mma of 8", d, {a0, a1}, {b0}, c);
}
template <typename T>
void mma(T type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(type, d, a, b0, b1, d);
}
template <typename T>
void mma(T type, float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  mma(type, d, a0, a1, b0, d);
}

template <typename T>
void mma_sparse(T, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], uint32_t places,
                const float (&c)[4]) {
  LaneOperands mine{d, a, b, c, places};
  emulated::with_warp("mma_sparse", mine, [](const auto& lanes) {
    Sums sums(lanes);
    const Right<T, 4> right(lanes);
    for (int row = 0; row < 16; ++row) {
      for (int i = 1; i < 4; ++i) {
        if (lanes[row % 8 * 4 + i]->places != lanes[row % 8 * 4]->places) {
          throw std::logic_error("mma_sparse: lanes of a row disagree");
        }
      }
      const uint32_t places = lanes[row % 8 * 4]->places >> row / 8 * 16;
      int last = -1;  // in its four
      for (int k = 0; k < 16; ++k) {
        const int place = static_cast<int>(places >> 2 * (k % 8) & 3);
        if (k % 2 == 1 && place <= last) throw std::logic_error("mma_sparse: places that do not rise");
        sums.add(row, left_of<T>(lanes, row, k), right.at[k / 2 * 4 + place]);
        last = place;
      }
    }
    sums.give(lanes);
  });
}

}  // namespace fastconv::ptx
