#include "fastconv/core/packed_arguments.h"

namespace fastconv {

ConvArguments unpack(int64_t packed) {
  const auto bits = [packed](int first, int count) { return packed >> first & ((int64_t{1} << count) - 1); };
  const auto pair = [bits](int first) -> Pair { return {bits(first, 8), bits(first + 8, 8)}; };
  return {pair(0), pair(16), pair(32), bits(50, 13), static_cast<Precision>(bits(48, 2))};
}

}  // namespace fastconv
