// The functions that may follow a convolution or a normalisation.
#pragma once

#include <cstdint>

namespace fastconv {

enum class Activation : int8_t { kNone, kRelu, kRelu6, kSilu, kGelu, kGeluTanh, kHardswish };
inline constexpr int kActivations = 7;

// Whether it hands values on as they are, within bounds: then one bit tells its gradient.
constexpr bool cuts_off(Activation activation) { return activation <= Activation::kRelu6; }

}  // namespace fastconv
