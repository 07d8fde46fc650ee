// Emulated: see the header that this one hides.
#pragma once

#include <utility>

#include "emulated/cuda.h"
#include "fastconv/launch/stream.h"

namespace fastconv {

struct LaunchShape {
  int64_t grid;
  int threads;
  int smem_bytes = 0;
};

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, Stream&, const Args&... args) {
  emulated::run_grid(name, shape.grid, shape.threads, shape.smem_bytes, [&] { kernel(args...); });
}

}  // namespace fastconv
