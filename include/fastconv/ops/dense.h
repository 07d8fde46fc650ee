// Tensors without gaps, as kernels want them that go through memory from end to end, and what else the CUDA ops of
// convolutions with something behind them have in common.
#pragma once

#include "fastconv/core/activation.h"
#include "fastconv/ops/conv2d_ops.h"

namespace fastconv::ops {

using OptionalTensor = std::optional<Tensor>;

// In this layout, and at a multiple of 16 bytes.
bool is_dense(const View& view, bool channels_last);

// The tensor itself, or a copy that is.
Tensor dense(const Tensor& tensor, bool channels_last);
// Fails unless it is of the size, type and device of `images`.
Tensor dense_like(const Tensor& images, bool channels_last, const char* name, const Tensor& tensor,
                  const char* name_of_images = "input");

// Filters in the type of `like`; nothing if they are of that.
OptionalTensor cast_filters(const Tensor& filters, const Tensor& like);

Activation activation_of(int64_t index);

}  // namespace fastconv::ops
