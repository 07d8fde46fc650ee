#include <type_traits>

#include "fastconv/families/grouped/launchers.h"
#include "fastconv/families/grouped/planes.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {

Launcher grouped_launcher(const KernelEntry& kernel, DType dtype) {
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (std::is_same_v<T, double>) {
      return nullptr;
    } else {
      return kernel.config.holds<GroupedPlanesConfig>() ? grouped_planes_launcher<T>(kernel.line)
                                                        : grouped_launcher<T>(kernel.line);
    }
  });
}

}  // namespace fastconv
