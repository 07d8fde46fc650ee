#include "fastconv/launch/tensor_map.h"

#include <stdexcept>

#include "fastconv/core/problem.h"

namespace fastconv {

// Refuses what the driver does.
CUtensorMap encode_tensor_map(const TensorMapSpec& spec, DType dtype, const void* address) {
  const int bytes = static_cast<int>(element_size(dtype));
  const auto* start = static_cast<const char*>(address) + spec.offset * bytes;
  bool good = reinterpret_cast<uintptr_t>(start) % 16 == 0 && spec.box[0] * bytes % 16 == 0 && spec.step[0] == 1;
  if (spec.swizzle_bytes > 0) good = good && spec.box[0] * bytes <= static_cast<uint32_t>(spec.swizzle_bytes);
  for (int i = 0; i < 5; ++i) {
    good =
        good && spec.size[i] >= 1 && spec.box[i] >= 1 && spec.box[i] <= 256 && spec.step[i] >= 1 && spec.step[i] <= 8;
    if (i > 0) good = good && spec.stride[i - 1] % 16 == 0 && spec.stride[i - 1] < uint64_t{1} << 40;
  }
  if (!good) throw std::logic_error("the driver refuses such a tensor map");
  return {spec, start, bytes};
}

}  // namespace fastconv
