// One source, compiled for several instruction sets of which the best is chosen at run time.
#pragma once

#include <cstdint>

// A function that is inlined into another is compiled for the instruction set of the latter.
#define FASTCONV_INLINE inline __attribute__((always_inline))

namespace fastconv {

template <int kBytes>
struct InstructionSet {
  static constexpr int kVectorBytes = kBytes;
};
using Simd512 = InstructionSet<64>;
using Simd256 = InstructionSet<32>;
using Simd128 = InstructionSet<16>;

template <class Isa, class Scalar>
struct VectorOf {
  static constexpr int kLanes = Isa::kVectorBytes / static_cast<int>(sizeof(Scalar));
  using Type __attribute__((vector_size(Isa::kVectorBytes), may_alias, aligned(alignof(Scalar)))) = Scalar;
};

#if defined(__x86_64__)
template <class Body>
__attribute__((target("arch=x86-64-v4"))) void call_x86_v4(const Body& body) {
  body(Simd512{});
}
template <class Body>
__attribute__((target("arch=x86-64-v3"))) void call_x86_v3(const Body& body) {
  body(Simd256{});
}
#endif

// Calls body(Isa{}). It has to be FASTCONV_INLINE_BODY, and all that is hot below it FASTCONV_INLINE.
#define FASTCONV_INLINE_BODY __attribute__((always_inline))
template <class Body>
void call_best(const Body& body) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4")) return call_x86_v4(body);
  if (__builtin_cpu_supports("x86-64-v3")) return call_x86_v3(body);
#endif
  body(Simd128{});
}

}  // namespace fastconv
