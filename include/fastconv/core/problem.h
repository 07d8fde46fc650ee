// The one description of a convolution that every layer shares. Plain data, no torch, no CUDA: it is copied into
// kernel parameters as it is, and it is tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>

#if defined(__CUDACC__)
#define FASTCONV_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FASTCONV_HOST_DEVICE inline
#endif

namespace fastconv {

inline constexpr int64_t kMaxExtent = 1 << 29;  // sums of coordinates stay within 32 bits

// Which of the three convolutions of a training step is computed: y from (x, w), dx from (dy, w), dw from (x, dy).
enum class Pass : int8_t { kFprop, kDgrad, kWgrad };
enum class DType : int8_t { kFloat32, kFloat64, kFloat16, kBFloat16 };
// How float32 products are formed; other dtypes ignore it. See docs/precision.md. kAllowTf32 leaves it to the planner,
// which gives kernels one of the others.
enum class Precision : int8_t { kIeee, kBf16x3, kTf32, kAllowTf32 };

// A value per spatial dimension.
struct Pair {
  int64_t h, w;

  bool operator==(const Pair&) const = default;
};

// Strides in elements. For the filter, n and c are its output and input channel, h and w its row and column.
struct Strides {
  int64_t n, c, h, w;

  bool operator==(const Strides&) const = default;
};

// Names follow the literature: input x is N C H W, filter w is K C/groups R S, output y is N K P Q. The gradients have
// the geometry of the tensors they belong to, so dgrad writes through `x` and wgrad through `w`.
struct ConvProblem {
  Pass pass;
  DType dtype;
  Precision precision;
  bool has_bias;
  int64_t n, c, h, w;
  int64_t k, r, s;
  int64_t groups;
  Pair stride, padding, dilation;
  Strides x_strides, w_strides, y_strides;
  // Largest power of two, at most 128, that divides the address of the tensor's first element. Bytes.
  int32_t x_align, w_align, y_align;

  bool operator==(const ConvProblem&) const = default;

  FASTCONV_HOST_DEVICE int64_t p() const { return (h + 2 * padding.h - dilation.h * (r - 1) - 1) / stride.h + 1; }
  FASTCONV_HOST_DEVICE int64_t q() const { return (w + 2 * padding.w - dilation.w * (s - 1) - 1) / stride.w + 1; }
  FASTCONV_HOST_DEVICE int64_t c_per_group() const { return c / groups; }
  FASTCONV_HOST_DEVICE int64_t k_per_group() const { return k / groups; }
};

const char* to_string(Pass pass);
const char* to_string(DType dtype);
const char* to_string(Precision precision);
int64_t element_size(DType dtype);  // bytes

size_t hash(const ConvProblem& problem);

// Of legal problems these are less than 2^60 each, see validate().
int64_t x_elements(const ConvProblem& problem);
int64_t w_elements(const ConvProblem& problem);
int64_t y_elements(const ConvProblem& problem);
// 2 * products. Padding counts as work, as in torch's FLOP counter.
double flops(const ConvProblem& problem);
// Every tensor read or written once.
double compulsory_bytes(const ConvProblem& problem);

std::ostream& operator<<(std::ostream& out, const ConvProblem& problem);

}  // namespace fastconv
