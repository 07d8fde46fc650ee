// The integers of a convolution, and its precision, in one integer. The dispatcher takes a tenth of a microsecond or
// more to bring an argument from Python; eight of them are half of a small call.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

struct ConvArguments {
  Pair stride, padding, dilation;
  int64_t groups;
  Precision precision;
};

// From the lowest bits on: stride, padding and dilation of rows and columns with 8 bits each, precision with 2, groups
// with 13. python/fastconv/ops.py packs them. Whether they are legal is for others to say.
ConvArguments unpack(int64_t packed);

}  // namespace fastconv
