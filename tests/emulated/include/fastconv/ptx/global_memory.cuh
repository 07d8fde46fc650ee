// Emulated: see the header that this one hides.
#pragma once

#include <cstring>

#include "emulated/cuda.h"

namespace fastconv::ptx {

inline void load_ahead(const void* pointer, uint32_t& v) { std::memcpy(&v, emulated::global(pointer, 4), 4); }
inline void load_ahead(const void* pointer, uint16_t& v) { std::memcpy(&v, emulated::global(pointer, 2), 2); }
inline void step(size_t& address, int64_t bytes) { address += bytes; }

}  // namespace fastconv::ptx
