#include "fastconv/planner/copies.h"

#include <numeric>

namespace fastconv {

bool copies(int64_t size, int64_t stride, int64_t bytes) {
  return size == 1 || (stride > 0 && stride * bytes % 16 == 0 && stride < (int64_t{1} << 40) / bytes);
}
uint64_t stride_bytes(int64_t size, int64_t stride, int64_t bytes) {
  return static_cast<uint64_t>(size == 1 ? 16 : stride * bytes);
}

int64_t address_phases(int64_t size, int64_t stride) { return size == 1 ? 1 : 8 / std::gcd(stride, int64_t{8}); }
int64_t row_phases(const Side& side) { return address_phases(side.h, side.stride.h); }

}  // namespace fastconv
