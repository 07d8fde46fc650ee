// Emulated: see the header that this one hides.
#pragma once

#include <cstring>

#include "emulated/cuda.h"

namespace fastconv::ptx {

inline uint32_t smem_address(const void* pointer) { return emulated::shared_address(pointer); }
inline void* block_memory(void*) { return emulated::shared_memory(); }

// As lanes hold it: lane i values 2 * (i % 4) and the next of row i / 4, or of that column.
struct Matrix {
  uint16_t at[8][8];

  uint32_t word(int lane, bool transposed) const {
    const int line = lane / 4, first = 2 * (lane % 4);
    return transposed ? at[first][line] | uint32_t{at[first + 1][line]} << 16
                      : at[line][first] | uint32_t{at[line][first + 1]} << 16;
  }
};

template <bool kTranspose>
void ldmatrix4(uint32_t address, uint32_t (&v)[4]) {
  struct Mine {
    uint32_t address, *v;
  } mine{address, v};
  emulated::with_warp("ldmatrix4", mine, [](const auto& lanes) {
    for (int i = 0; i < 4; ++i) {
      Matrix matrix;
      for (int row = 0; row < 8; ++row) {
        std::memcpy(matrix.at[row], emulated::shared(lanes[8 * i + row]->address, 16), 16);
      }
      for (int lane = 0; lane < 32; ++lane) lanes[lane]->v[i] = matrix.word(lane, kTranspose);
    }
  });
}

template <bool kTranspose>
void ldmatrix2(uint32_t address, uint32_t (&v)[2]) {
  uint32_t four[4];
  ldmatrix4<kTranspose>(__shfl_sync(~0u, address, static_cast<int>(threadIdx.x % 16)), four);
  v[0] = four[0], v[1] = four[1];
}

template <bool kTranspose, int kMatrices>
void store_matrices(uint32_t address, const uint32_t (&v)[kMatrices]) {
  struct Mine {
    uint32_t address;
    const uint32_t* v;
  } mine{address, v};
  emulated::with_warp("stmatrix", mine, [](const auto& lanes) {
    for (int i = 0; i < kMatrices; ++i) {
      Matrix matrix;
      for (int lane = 0; lane < 32; ++lane) std::memcpy(&matrix.at[lane / 4][2 * (lane % 4)], &lanes[lane]->v[i], 4);
      for (int row = 0; row < 8; ++row) {
        uint32_t words[4];
        for (int word = 0; word < 4; ++word) words[word] = matrix.word(4 * row + word, kTranspose);
        std::memcpy(emulated::shared_for_write(lanes[8 * i + row]->address, 16), words, 16);
      }
    }
  });
}

template <bool kTranspose>
void stmatrix4(uint32_t address, const uint32_t (&v)[4]) {
  store_matrices<kTranspose>(address, v);
}
inline void stmatrix2(uint32_t address, const uint32_t (&v)[2]) { store_matrices<true>(address, v); }

inline uint32_t transpose_matrix(uint32_t v) {
  emulated::with_warp("transpose_matrix", v, [](const auto& lanes) {
    Matrix matrix;
    for (int i = 0; i < 32; ++i) std::memcpy(&matrix.at[i / 4][2 * (i % 4)], lanes[i], 4);
    for (int i = 0; i < 32; ++i) *lanes[i] = matrix.word(i, true);
  });
  return v;
}

template <typename T>
T load_shared(uint32_t address) {
  T v;
  std::memcpy(&v, emulated::shared(address, sizeof(T)), sizeof(T));
  return v;
}
inline uint16_t load_shared2(uint32_t address) { return load_shared<uint16_t>(address); }
inline uint32_t load_shared4(uint32_t address) { return load_shared<uint32_t>(address); }
inline void load_shared_ahead(uint32_t address, uint32_t& v) { v = load_shared<uint32_t>(address); }
inline void load_shared_ahead(uint32_t address, uint16_t& v) { v = load_shared<uint16_t>(address); }
inline uint2 load_shared8(uint32_t address) { return load_shared<uint2>(address); }
inline uint4 load_shared16(uint32_t address) { return load_shared<uint4>(address); }
template <typename T>
void store_shared(uint32_t address, const T& v) {
  std::memcpy(emulated::shared_for_write(address, sizeof(T)), &v, sizeof(T));
}
inline void store_shared2(uint32_t address, uint16_t v) { store_shared(address, v); }
inline void store_shared4(uint32_t address, uint32_t v) { store_shared(address, v); }
inline void store_shared_float(uint32_t address, float v) { store_shared(address, v); }
inline void store_shared_floats(uint32_t address, float v0, float v1) {
  store_shared(address, std::array<float, 2>{v0, v1});
}
inline void store_shared_floats(uint32_t address, float v0, float v1, float v2, float v3) {
  store_shared(address, std::array<float, 4>{v0, v1, v2, v3});
}
inline void store_shared8(uint32_t address, const uint2& v) { store_shared(address, v); }
inline void store_shared16(uint32_t address, const uint4& v) { store_shared(address, v); }

}  // namespace fastconv::ptx
