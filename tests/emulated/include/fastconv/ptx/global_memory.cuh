// Emulated: see the header that this one hides.
#pragma once

#include <cstring>

#include "emulated/cuda.h"

namespace fastconv::ptx {

inline void store_global8_once(void* pointer, const uint32_t (&v)[2]) {
  std::memcpy(const_cast<void*>(emulated::global(pointer, 8)), v, 8);
}
inline void store_global16(void* pointer, const uint32_t (&v)[4]) {
  std::memcpy(const_cast<void*>(emulated::global(pointer, 16)), v, 16);
}
inline void store_global16_once(void* pointer, const uint32_t (&v)[4]) { store_global16(pointer, v); }
inline void load_global16(const void* pointer, uint32_t (&v)[4]) { std::memcpy(v, emulated::global(pointer, 16), 16); }
inline void load_global16_once(const void* pointer, uint32_t (&v)[4]) { load_global16(pointer, v); }
inline void load_ahead(const void* pointer, uint32_t& v) { std::memcpy(&v, emulated::global(pointer, 4), 4); }
inline void load_ahead(const void* pointer, uint16_t& v) { std::memcpy(&v, emulated::global(pointer, 2), 2); }
inline void step(size_t& address, int64_t bytes) { address += bytes; }

inline uint32_t fetch_add_release(uint32_t* counter, uint32_t value) {
  const uint32_t before = *counter;
  *counter += value;
  return before;
}
inline void add_release(uint32_t* counter) { ++*counter; }
// Whoever reads it reads it again until it changes.
inline uint32_t load_acquire(const uint32_t* counter) {
  emulated::poll("load_acquire");
  return *counter;
}

}  // namespace fastconv::ptx
