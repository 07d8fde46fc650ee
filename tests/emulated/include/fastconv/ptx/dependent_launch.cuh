// Emulated kernels run one after the other.
#pragma once

namespace fastconv::ptx {

inline void follow_previous_kernel() {}

}  // namespace fastconv::ptx
