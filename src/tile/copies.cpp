#include "fastconv/tile/copies.h"

#include <numeric>

#include "fastconv/core/integers.h"

namespace fastconv {
namespace {

constexpr int64_t kFloatBytes = 4;

}  // namespace

bool copies(int64_t size, int64_t stride, int64_t bytes) {
  return size == 1 || (stride > 0 && stride * bytes % 16 == 0 && stride < (int64_t{1} << 40) / bytes);
}
uint64_t stride_bytes(int64_t size, int64_t stride, int64_t bytes) {
  return static_cast<uint64_t>(size == 1 ? 16 : stride * bytes);
}

int64_t address_phases(int64_t size, int64_t stride, int64_t bytes) {
  const int64_t unit = 16 / bytes;
  return size == 1 ? 1 : unit / std::gcd(stride, unit);
}
int64_t row_phases(const Side& side) { return address_phases(side.h, side.stride.h); }

const char* boxes_why_not(const ConvProblem& problem) {
  const int64_t bytes = element_size(problem.dtype);
  auto readable = [&](const Side& side) {
    return copies(side.n, side.stride.n, bytes) && copies(side.h, side.stride.h, bytes) &&
           copies(side.w, side.stride.w, bytes);
  };
  if (!readable(source_side(problem)) || !readable(target_side(problem))) {
    return "is read and stored by TMA: needs strides that it takes";
  }
  return nullptr;
}

TensorMapSpec pixels_map(const Side& side, int64_t channels, const uint32_t (&box)[4], uint32_t column_step,
                         int32_t pixel_bytes) {
  const int64_t element_bytes = pixel_bytes / box[0];
  auto dimension = [](int64_t v) { return static_cast<uint64_t>(v); };
  return {{dimension(channels), dimension(side.w), dimension(side.h), dimension(side.n), 1},
          {stride_bytes(side.w, side.stride.w, element_bytes), stride_bytes(side.h, side.stride.h, element_bytes),
           stride_bytes(side.n, side.stride.n, element_bytes), 16},
          {box[0], box[1], box[2], box[3], 1},
          {1, column_step, 1, 1, 1},
          pixel_bytes > 16 ? pixel_bytes : 0};
}

bool filters_copyable(const ConvProblem& problem) {
  const Strides& strides = problem.w_strides;
  const int64_t values = problem.c_per_group() * problem.r * problem.s;
  const int64_t last =
      (problem.c_per_group() - 1) * strides.c + (problem.r - 1) * strides.h + (problem.s - 1) * strides.w;
  return strides.n == values && last == values - 1 && problem.w_align >= 16;
}

bool planes_copyable(const Side& side, int64_t channels, DType dtype) {
  const int64_t unit = 16 / element_size(dtype), plane = side.h * side.w, image = channels * plane;
  if (side.stride.w != 1 || (side.h > 1 && side.stride.h != side.w) || side.align < 16) return false;
  const bool dense = (channels == 1 || side.stride.c == plane) && (side.n == 1 || side.stride.n == image);
  const bool planes = plane % unit == 0 && keeps_multiples(side.stride.n, side.n, unit) &&
                      keeps_multiples(side.stride.c, channels, unit);
  return planes || (dense && side.n * image % unit == 0);
}

// A single column too needs its stride: images of one pixel may become a row of pixels, see flatten().
bool floats_copyable(const Side& side, int64_t groups) {
  return side.stride.w == 1 && (side.h == 1 || side.stride.h == side.w) && side.align >= 16 &&
         side.h * side.w < kMaxExtent && copies(side.n, side.stride.n, kFloatBytes) &&
         copies(side.c, side.stride.c, kFloatBytes) && copies(groups, side.c * side.stride.c, kFloatBytes);
}

TensorMapSpec floats_map(const Side& side, int64_t groups, int64_t pixels, int64_t channels, bool exact) {
  auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  return {{u64(side.h * side.w), u64(side.c), u64(groups), u64(side.n), 1},
          {stride_bytes(side.c, side.stride.c, kFloatBytes), stride_bytes(groups, side.c * side.stride.c, kFloatBytes),
           stride_bytes(side.n, side.stride.n, kFloatBytes), 16},
          {u32(pixels), u32(channels), 1, 1, 1},
          {1, 1, 1, 1, 1},
          0,
          0,
          exact};
}

}  // namespace fastconv
