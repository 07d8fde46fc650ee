// The header that this one hides, counted: of finite numbers nothing should need it, and it would put right whatever
// goes wrong in a way that leaves a NaN.
#pragma once

#include "emulated/cuda.h"

#define convolve_column_by_definition convolve_uncounted
#include_next "fastconv/families/depthwise/definition.cuh"
#undef convolve_column_by_definition

namespace fastconv {

template <typename T, bool kTransposed, int kStride, typename... Args>
void convolve_column_by_definition(const Args&... args) {
  ++emulated::machine().columns_by_definition;
  convolve_uncounted<T, kTransposed, kStride>(args...);
}

}  // namespace fastconv
