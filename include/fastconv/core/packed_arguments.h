// The integers of a convolution, and its precision, in one integer. The dispatcher takes a tenth of a microsecond or
// more to bring an argument from Python; eight of them are half of a small call.
#pragma once

#include <cstdint>
#include <optional>

#include "fastconv/core/problem.h"

namespace fastconv {

struct ConvArguments {
  Pair stride, padding, dilation;
  int64_t groups;
  Precision precision;
};

// Empty where a value needs more bits than it has here; legal or not is for others to say.
std::optional<int64_t> pack(const ConvArguments& arguments);
ConvArguments unpack(int64_t packed);

}  // namespace fastconv
