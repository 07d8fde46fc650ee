#include "fastconv/ops/complex.h"

#include <array>
#include <vector>

namespace fastconv::ops {
namespace {

using torch::stable::Tensor;

template <class... Args>
Tensor call(const char* name, const char* overload, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// A view, with a dimension of 2 for the parts behind the channels. Of an image they are third from last.
Tensor parts_of(const Tensor& tensor, int64_t channels) {
  return call("aten::movedim", "int", call("aten::view_as_real", "", tensor), tensor.dim(), channels + 1);
}

// [K, 2, C, 2, R, S] of a filter's real form -> [K, C, R, S].
Tensor block(const Tensor& real, int64_t row, int64_t column) {
  return torch::stable::select(torch::stable::select(real, 1, row), 2, column);
}

Tensor as_blocks(const Tensor& real) {
  const auto size = real.sizes();
  return torch::stable::reshape(real, {size[0] / 2, 2, size[1] / 2, 2, size[2], size[3]});
}

}  // namespace

bool is_complex(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::headeronly::ScalarType::ComplexHalf:
    case torch::headeronly::ScalarType::ComplexFloat:
    case torch::headeronly::ScalarType::ComplexDouble: return true;
    default: return false;
  }
}

Tensor real_channels(const Tensor& image) {
  const int64_t channels = image.dim() - 3;
  return torch::stable::flatten(parts_of(image, channels), channels, channels + 1);
}

Tensor real_bias(const Tensor& bias) { return torch::stable::flatten(call("aten::view_as_real", "", bias), 0, 1); }

Tensor real_filters(const Tensor& weight, bool conjugate) {
  const Tensor parts = call("aten::view_as_real", "", weight);
  const Tensor real = torch::stable::select(parts, -1, 0), imaginary = torch::stable::select(parts, -1, 1);
  const Tensor negative = call("aten::neg", "", imaginary);
  const auto size = weight.sizes();
  const Tensor filters = torch::stable::new_empty(parts, {size[0], 2, size[1], 2, size[2], size[3]});
  const auto store = [&](int64_t row, int64_t column, const Tensor& part) {
    Tensor to = block(filters, row, column);
    torch::stable::copy_(to, part);
  };
  store(0, 0, real);
  store(1, 1, real);
  store(0, 1, conjugate ? imaginary : negative);
  store(1, 0, conjugate ? negative : imaginary);
  return torch::stable::reshape(filters, {2 * size[0], 2 * size[1], size[2], size[3]});
}

Tensor complex_bias(const Tensor& real) {
  return call("aten::view_as_complex", "", torch::stable::reshape(real, {real.numel() / 2, 2}));
}

void store_channels(Tensor& image, const Tensor& real) {
  const int64_t channels = image.dim() - 3;
  Tensor parts = parts_of(image, channels);
  torch::stable::copy_(parts, torch::stable::reshape(real, parts.sizes()));
}

void store_filters(Tensor& weight, const Tensor& real) {
  const Tensor parts = call("aten::view_as_real", "", weight), blocks = as_blocks(real);
  Tensor to_real = torch::stable::select(parts, -1, 0), to_imaginary = torch::stable::select(parts, -1, 1);
  torch::stable::copy_(to_real, torch::stable::subtract(block(blocks, 0, 0), block(blocks, 1, 1)));
  torch::stable::copy_(to_imaginary, torch::stable::subtract(block(blocks, 0, 1), block(blocks, 1, 0), -1));
}

}  // namespace fastconv::ops
