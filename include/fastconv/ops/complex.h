// Complex numbers as pairs of real channels, so that one real convolution of twice the channels and filters computes a
// complex one: (c, real), (c, imaginary), (c + 1, real), ... Groups stay together.
#pragma once

#include "fastconv/ops/torch_stable.h"

namespace fastconv::ops {

bool is_complex(const torch::stable::Tensor& tensor);

// [N, C, H, W] -> real [N, 2 * C, H, W], also without N; a copy only where strides do not allow a view.
torch::stable::Tensor real_channels(const torch::stable::Tensor& image);
// [K] -> real [2 * K].
torch::stable::Tensor real_bias(const torch::stable::Tensor& bias);
// [K, C, R, S] -> real [2 * K, 2 * C, R, S], whose products with real channels are those of the filter, or of its
// conjugate: the input gradient's, which sums over filters.
torch::stable::Tensor real_filters(const torch::stable::Tensor& weight, bool conjugate);

// Into a complex tensor: what real_channels undoes, and the sums of products that a complex weight gradient has out of
// a real one [2 * K, 2 * C, R, S].
void store_channels(torch::stable::Tensor& image, const torch::stable::Tensor& real);
void store_filters(torch::stable::Tensor& weight, const torch::stable::Tensor& real);
// Undoes real_bias.
torch::stable::Tensor complex_bias(const torch::stable::Tensor& real);

}  // namespace fastconv::ops
