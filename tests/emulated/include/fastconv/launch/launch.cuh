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
  unsigned cluster = 1;
  bool cooperative = false;
};

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, Stream&, const Args&... args) {
  const emulated::Grid grid{shape.grid, shape.threads, shape.smem_bytes, static_cast<int>(shape.cluster),
                            shape.cooperative};
  emulated::run_grid(name, grid, [&] { kernel(args...); });
}

template <typename... Params, typename... Args>
bool launch_together(const char* name, void (*kernel)(Params...), LaunchShape shape, Stream& stream,
                     const Args&... args) {
  if (!emulated::machine().runs_together) return false;
  shape.cooperative = true;
  return launch(name, kernel, shape, stream, args...), true;
}

}  // namespace fastconv
