#pragma once

#include "fastconv/core/activation.h"

namespace fastconv {

// A kernel of a pair: `fits` says for which numbers it computes, see core/operand_range.h.
struct OperandRange;
struct RangeGate {
  const OperandRange* range;  // null: for any
  bool fits;
};

// Addresses that go with a ConvProblem. The pass says which of x, w, y is written; the other two are only read.
struct ConvBuffers {
  void* x;
  void* w;
  void* y;
  const void* bias;  // null if there is none
  void* workspace;   // Plan::workspace_bytes, 256-byte aligned; contents undefined
  RangeGate gate{};
  // On a GPU alone.
  Activation activation = Activation::kNone;  // of the output; one that cuts off
  bool wide_bias = false;                     // in float32, of tensors of 16 bits
};

}  // namespace fastconv
