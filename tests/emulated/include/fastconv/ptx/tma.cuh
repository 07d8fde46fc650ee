// Emulated: see the header that this one hides. Fences of device memory do nothing: that one is missing does not show.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "emulated/cuda.h"
#include "fastconv/tile/split.h"

namespace fastconv::ptx {

namespace tma {

// Calls f(shared-memory address, device memory) for every element of a box, null where there is none.
template <typename F>
void for_each_element(const CUtensorMap& map, uint32_t smem, std::array<int32_t, 5> at, F f) {
  const TensorMapSpec& spec = map.spec;
  const int bytes = map.element_bytes;
  if (at[0] * bytes % 16 != 0) emulated::fail("a box of TMA that begins beside 16 bytes");
  if (smem % (spec.swizzle_bytes > 0 ? 128 : 16) != 0) emulated::fail("a box in shared memory that is not aligned");
  const uint32_t pattern = spec.swizzle_bytes == 0 ? 0 : spec.swizzle_bytes / 16 - 1;
  uint32_t offset = 0;
  std::array<uint32_t, 5> i{};
  auto run = [&](auto& self, int dim, const char* from, bool exists) -> void {
    for (i[dim] = 0; i[dim] < spec.box[dim]; i[dim] += spec.step[dim]) {
      const int64_t place = int64_t{at[dim]} + i[dim];
      const bool inside = exists && place >= 0 && place < static_cast<int64_t>(spec.size[dim]);
      const char* const element = from + (dim == 0 ? bytes : static_cast<int64_t>(spec.stride[dim - 1])) * place;
      if (dim > 0) {
        self(self, dim - 1, element, inside);
      } else {
        const uint32_t address = smem + offset;
        f(address ^ ((address >> 7 & pattern) << 4), inside ? element : nullptr);
        offset += bytes;
      }
    }
  };
  run(run, 4, map.address, true);
}
inline uint32_t box_bytes(const CUtensorMap& map) {
  uint32_t bytes = map.element_bytes;
  for (int i = 0; i < 5; ++i) bytes *= (map.spec.box[i] + map.spec.step[i] - 1) / map.spec.step[i];
  return bytes;
}

template <typename T>
void load_element(uint32_t to, const char* from, bool exact) {
  T value{};
  if (from != nullptr) std::memcpy(&value, emulated::global(from, sizeof(T)), sizeof(T));
  if constexpr (sizeof(T) == 4) {
    if (!exact) value = to_tf32(std::bit_cast<float>(value));
  }
  std::memcpy(emulated::shared_for_engine(to, sizeof(T)), &value, sizeof(T));
}

}  // namespace tma

inline void tma_load(uint32_t smem, const CUtensorMap* map, int32_t i0, int32_t i1, int32_t i2, int32_t i3, int32_t i4,
                     uint32_t barrier) {
  emulated::engine_copy(barrier, tma::box_bytes(*map), [=, map = *map] {
    tma::for_each_element(map, smem, {i0, i1, i2, i3, i4}, [&](uint32_t to, const char* from) {
      map.element_bytes == 2 ? tma::load_element<uint16_t>(to, from, true)
                             : tma::load_element<uint32_t>(to, from, map.spec.exact);
    });
  });
}

inline void tma_store(const CUtensorMap* map, uint32_t smem, int32_t i0, int32_t i1, int32_t i2, int32_t i3,
                      int32_t i4) {
  if (std::min({i0, i1, i2, i3, i4}) < 0) emulated::fail("a box that is stored begins before the tensor");
  emulated::engine_store([=, map = *map] {
    const int bytes = map.element_bytes;
    tma::for_each_element(map, smem, {i0, i1, i2, i3, i4}, [&](uint32_t from, const char* to) {
      if (to == nullptr) return;
      std::memcpy(const_cast<void*>(emulated::global(to, bytes)), emulated::shared_for_engine(from, bytes), bytes);
    });
  });
}
inline void bulk_commit() { emulated::engine_store_commit(); }
template <int kLeft = 0>
void bulk_wait_read() {
  emulated::engine_store_wait(kLeft);
}
inline void bulk_wait() { emulated::engine_store_wait(0); }

inline void bulk_load(uint32_t smem, const void* global, uint32_t bytes, uint32_t barrier) {
  if (bytes % 16 != 0) emulated::fail("TMA moves 16 bytes at once");
  emulated::engine_copy(barrier, bytes, [=] {
    for (uint32_t i = 0; i < bytes; i += 16) {
      std::memcpy(emulated::shared_for_engine(smem + i, 16), emulated::global(static_cast<const char*>(global) + i, 16),
                  16);
    }
  });
}

inline void tma_prefetch(const CUtensorMap*) {}
inline void async_proxy_fence() { emulated::fence_shared(); }
inline void async_proxy_fence_all() { emulated::fence_shared(); }

}  // namespace fastconv::ptx
