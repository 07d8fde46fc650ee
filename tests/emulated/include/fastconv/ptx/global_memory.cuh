// Emulated: see the header that this one hides.
#pragma once

#include <cstring>

#include "emulated/cuda.h"

namespace fastconv::ptx {

inline void store_global16(void* pointer, const uint32_t (&v)[4]) {
  std::memcpy(const_cast<void*>(emulated::global(pointer, 16)), v, 16);
}
inline void load_global16(const void* pointer, uint32_t (&v)[4]) { std::memcpy(v, emulated::global(pointer, 16), 16); }
inline void load_ahead(const void* pointer, uint32_t& v) { std::memcpy(&v, emulated::global(pointer, 4), 4); }
inline void load_ahead(const void* pointer, uint16_t& v) { std::memcpy(&v, emulated::global(pointer, 2), 2); }
inline void step(size_t& address, int64_t bytes) { address += bytes; }

}  // namespace fastconv::ptx
