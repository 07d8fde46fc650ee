#include "fastconv/families/few_channels/stem_launch.cuh"

fastconv::Launcher fastconv::stem_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define STEM_KERNEL(name, parts, filters, operand) launch_stem<parts, filters, Operand::operand>,
#include "fastconv/families/few_channels/stem.def"
#undef STEM_KERNEL
  };
  return kLaunchers[line];
}
