// From the library's name of an element type to the C++ type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fastconv/core/problem.h"

namespace fastconv {

// body.operator()<T>().
template <typename Body>
auto with_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32: return body.template operator()<float>();
    case DType::kFloat64: return body.template operator()<double>();
    case DType::kFloat16: return body.template operator()<__half>();
    default: return body.template operator()<__nv_bfloat16>();
  }
}

}  // namespace fastconv
