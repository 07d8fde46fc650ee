// The header that this one hides, counted, as families/depthwise/definition.cuh is.
#pragma once

#include "emulated/cuda.h"

#define cross_tap_by_definition cross_tap_uncounted
#include_next "fastconv/families/depthwise/cross_definition.cuh"
#undef cross_tap_by_definition

namespace fastconv {

template <typename T, DepthwiseCrossConfig kConfig, typename... Args>
float cross_tap_by_definition(const Args&... args) {
  ++emulated::machine().columns_by_definition;
  return cross_tap_uncounted<T, kConfig>(args...);
}

}  // namespace fastconv
