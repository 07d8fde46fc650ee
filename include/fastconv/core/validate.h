// Says whether a convolution is legal, before anything is allocated or launched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastconv/core/problem.h"

namespace fastconv {

using Sizes = std::vector<int64_t>;

// What the caller passed, before it is known to be a convolution at all. Sizes are those of the 4-D view: an unbatched
// input has been given its batch dimension by then.
struct ConvGeometry {
  Sizes input, weight;
  Pair stride, padding, dilation;
  int64_t groups;
};

// Empty if legal; otherwise a sentence that names the argument, its value and what is allowed.
std::string validate(const ConvGeometry& geometry);
// As above for the tensors that come with a gradient, given a legal geometry.
std::string validate_bias(const ConvGeometry& geometry, const Sizes& bias);
std::string validate_grad_output(const ConvGeometry& geometry, const Sizes& grad_output);

// The same convolution by numbers that index maths takes: the dilation of a single tap and the stride of a single
// output may be anything. Of a legal geometry.
ConvGeometry simplified(ConvGeometry geometry);

// Empty sizes if the geometry is not legal.
Sizes output_size(const ConvGeometry& geometry);

}  // namespace fastconv
