// One source, compiled for several instruction sets of which the best is chosen at run time.
#pragma once

#include <cstdint>

// A function that is inlined into another is compiled for the instruction set of the latter.
#define FASTCONV_INLINE inline __attribute__((always_inline))

namespace fastconv {

// kRows x 3 accumulators, 3 vectors of columns and a broadcast have to fit the register file.
template <int kBytes, int kRowCount>
struct InstructionSet {
  static constexpr int kVectorBytes = kBytes;
  static constexpr int kRows = kRowCount;
};
using Simd512 = InstructionSet<64, 8>;  // 32 registers
using Simd256 = InstructionSet<32, 4>;  // 16 registers
#if defined(__aarch64__)
using Simd128 = InstructionSet<16, 8>;  // 32 registers
#else
using Simd128 = InstructionSet<16, 4>;  // 16 registers
#endif

template <class Isa, class Scalar>
struct VectorOf {
  static constexpr int kLanes = Isa::kVectorBytes / static_cast<int>(sizeof(Scalar));
  using Type __attribute__((vector_size(Isa::kVectorBytes), may_alias)) = Scalar;
};

#if defined(__x86_64__)
template <class Body, class... Args>
__attribute__((target("arch=x86-64-v4"))) void call_x86_v4(Args&... args) {
  Body::template run<Simd512>(args...);
}
template <class Body, class... Args>
__attribute__((target("arch=x86-64-v3"))) void call_x86_v3(Args&... args) {
  Body::template run<Simd256>(args...);
}
#endif

// Calls Body::run<Isa>(args...), which has to be FASTCONV_INLINE, and so has all that is hot below it.
template <class Body, class... Args>
void call_best(Args&... args) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4")) return call_x86_v4<Body>(args...);
  if (__builtin_cpu_supports("x86-64-v3")) return call_x86_v3<Body>(args...);
#endif
  Body::template run<Simd128>(args...);
}

}  // namespace fastconv
