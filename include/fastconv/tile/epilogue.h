// What plans need to know of tile/epilogue.cuh.
#pragma once

namespace fastconv {

inline constexpr int kStagedEpilogueBytes = 4;  // of a filter, in shared memory

}  // namespace fastconv
