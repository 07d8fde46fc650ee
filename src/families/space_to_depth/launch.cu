#include "fastconv/families/space_to_depth/launch.h"

#include "fastconv/launch/launchers.h"

namespace fastconv {

Launcher space_to_depth_launcher(const KernelEntry& kernel, DType) {
  return kernel.config.holds<PatchesConfig>() ? launch_patches : launch_subpixel;
}

}  // namespace fastconv
