// Emulated: see the header that this one hides.
#pragma once

#include "emulated/cuda.h"

namespace fastconv::ptx {

template <int kBytes, bool kPastL1 = kBytes == 16>
void async_copy(uint32_t to, const void* from, bool exists) {
  static_assert(kBytes == 16 || ((kBytes == 4 || kBytes == 8) && !kPastL1));
  if (reinterpret_cast<uintptr_t>(from) % kBytes != 0) emulated::fail("cp.async from a misaligned address");
  emulated::async_copy(to, exists ? from : nullptr, kBytes);
}
inline void async_copy_commit() { emulated::async_copy_commit(); }
template <int kPending>
void async_copy_wait() {
  emulated::async_copy_wait(kPending);
}

}  // namespace fastconv::ptx
