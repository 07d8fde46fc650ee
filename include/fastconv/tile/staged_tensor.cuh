// Rows of planes that TMA brings to shared memory as they lie in device memory.
#pragma once

#include <cstdint>

#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/tma.cuh"

namespace fastconv {

// Of `rows` rows from `row` on those that exist, and before them so many that `skipped` is a multiple of the step.
struct RowSpan {
  int32_t first;                  // that exists
  int32_t skipped, blank, count;  // blank: rows of the count that do not exist

  __device__ RowSpan(int32_t row, int32_t rows, int32_t extent, int32_t step = 1)
      : first(max(0, row)),
        skipped((first - row) / step * step),
        blank(first - row - skipped),
        count(max(0, min(rows, extent - row) - skipped)) {}

  __device__ int32_t existing() const { return max(0, count - blank); }
};

// One channel of a tensor whose rows TMA brings to shared memory, where those of an image lie as in device
// memory.
struct StagedTensor {
  const uint8_t* planes;  // the channel's
  int64_t image_stride;   // bytes
  int32_t row_bytes, columns;
  int32_t image_bytes;  // in shared memory, from one image's rows to the next one's

  // Bytes of an image's rows from the unit of 16 bytes on in which they begin.
  __device__ int32_t lead(int32_t image, const RowSpan& rows) const {
    return static_cast<int32_t>(reinterpret_cast<size_t>(begin(image, rows)) & 15);
  }
  // By one thread, which arrives at the barrier later.
  __device__ void copy(int32_t image, const RowSpan& rows, uint32_t to, uint32_t barrier) const {
    if (rows.existing() == 0) return;
    const int32_t before = lead(image, rows), bytes = (before + rows.existing() * row_bytes + 15) & ~15;
    ptx::mbarrier_expect(barrier, bytes);
    ptx::bulk_load(to, begin(image, rows) - before, bytes, barrier);
  }

 private:
  __device__ const uint8_t* begin(int32_t image, const RowSpan& rows) const {
    return planes + image * image_stride + int64_t{rows.first} * row_bytes;
  }
};

}  // namespace fastconv
