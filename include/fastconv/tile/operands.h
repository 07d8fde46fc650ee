// What the tensor cores multiply.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// Of a kernel.
enum class OperandForm : int8_t {
  kHalf,           // 16-bit tensors
  kTf32,           // float32, rounded
  kParts,          // float32 as parts of 16 bits, see split.h
  kPromotedParts,  // the same, with sums that move to a second set of registers on their way, see
                   // families/halo/mainloop.cuh
  kScaled,         // float32, scaled and rounded to fp16, see operand_range.h
  kPromotedScaled  // in two parts, with such sums
};
FASTCONV_HOST_DEVICE constexpr bool has_parts(OperandForm operands) {
  return operands == OperandForm::kParts || operands == OperandForm::kPromotedParts ||
         operands == OperandForm::kPromotedScaled;
}
FASTCONV_HOST_DEVICE constexpr bool is_scaled(OperandForm operands) {
  return operands == OperandForm::kScaled || operands == OperandForm::kPromotedScaled;
}
// fp16 parts of a scaled value, else 0.
constexpr int scaled_parts(OperandForm operands) {
  return operands == OperandForm::kScaled ? 1 : operands == OperandForm::kPromotedScaled ? 2 : 0;
}
FASTCONV_HOST_DEVICE constexpr bool promotes(OperandForm operands) {
  return operands == OperandForm::kPromotedParts || operands == OperandForm::kPromotedScaled;
}
FASTCONV_HOST_DEVICE constexpr int operand_bytes(OperandForm operands) {
  return operands == OperandForm::kTf32 ? 4 : 2;
}

// Of one value or part. fp16 has too few exponents for float32: values are scaled, see
// operand_range.h.
enum class Operand : int8_t { kTf32, kBf16, kFp16 };

FASTCONV_HOST_DEVICE constexpr Operand operand_of(OperandForm operands) {
  return is_scaled(operands) ? Operand::kFp16 : operands == OperandForm::kTf32 ? Operand::kTf32 : Operand::kBf16;
}
FASTCONV_HOST_DEVICE constexpr int operand_bytes(Operand operand) { return operand == Operand::kTf32 ? 4 : 2; }

}  // namespace fastconv
