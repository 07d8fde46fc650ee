// Emulated: see the header that this one hides.
#pragma once

#include <cstring>

#include "emulated/cuda.h"

namespace fastconv::ptx {

inline uint32_t smem_address(const void* pointer) { return emulated::shared_address(pointer); }

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

inline uint32_t transpose_matrix(uint32_t v) {
  emulated::with_warp("transpose_matrix", v, [](const auto& lanes) {
    Matrix matrix;
    for (int i = 0; i < 32; ++i) std::memcpy(&matrix.at[i / 4][2 * (i % 4)], lanes[i], 4);
    for (int i = 0; i < 32; ++i) *lanes[i] = matrix.word(i, true);
  });
  return v;
}

}  // namespace fastconv::ptx
