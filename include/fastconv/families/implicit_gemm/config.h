// What tells the kernels of this family apart.
#pragma once

#include <cstdint>

namespace fastconv {

// What is multiplied, and by what.
enum class GemmMethod : int8_t {
  kDirect,  // gathered on the way to shared memory, by multiply-adds
  kIm2col,  // a matrix of columns that was written before, by multiply-adds
  kMma      // gathered, on tensor cores
};

// What a tiled kernel reads in accesses of 16 bytes; the rest is read element by element.
enum class VectorReads : int8_t {
  kScalar,         // nothing
  kFilterVector,   // the filter, along its taps
  kChannelVector,  // both operands, along their channels
  kPixelVector,    // both operands, along their pixels
};

struct GemmConfig {
  GemmMethod method;
  VectorReads reads;
  int thread_m = 0, thread_n = 0;  // outputs a thread, of multiply-adds
};

}  // namespace fastconv
