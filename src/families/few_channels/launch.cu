#include <type_traits>

#include "fastconv/families/few_channels/embed_config.h"
#include "fastconv/families/few_channels/launchers.h"
#include "fastconv/families/few_channels/quads_config.h"
#include "fastconv/families/few_channels/quads_wgrad_config.h"
#include "fastconv/families/few_channels/stem_config.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {

Launcher few_channels_launcher(const KernelEntry& kernel, DType dtype) {
  const auto& config = kernel.config;
  if (config.holds<StemConfig>()) return stem_launcher<float>(kernel.line);
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (!std::is_same_v<T, double>) {
      if (config.holds<QuadsConfig>()) return quads_launcher<T>(kernel.line);
      if (config.holds<EmbedConfig>()) return embed_launcher<T>(kernel.line);
      if constexpr (!std::is_same_v<T, float>) {
        if (config.holds<QuadsWgradConfig>()) return quads_wgrad_launcher<T>(kernel.line);
      }
    }
    return nullptr;
  });
}

}  // namespace fastconv
