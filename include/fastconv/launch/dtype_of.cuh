// From a C++ element type to the library's name of it.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "fastconv/core/problem.h"

namespace fastconv {

template <typename T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kFloat32
                                  : std::is_same_v<T, double> ? DType::kFloat64
                                  : std::is_same_v<T, __half> ? DType::kFloat16
                                                              : DType::kBFloat16;

}  // namespace fastconv
