// Emulated: see the header that this one hides.
#pragma once

namespace fastconv::ptx {

template <typename Acc>
Acc min_or_nan(Acc a, Acc b) {
  return a > b || b != b ? b : a;
}
template <typename Acc>
Acc max_or_nan(Acc a, Acc b) {
  return a < b || b != b ? b : a;
}

}  // namespace fastconv::ptx
