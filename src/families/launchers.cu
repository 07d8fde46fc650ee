// Of the CUDA library alone: the families' launchers.
#include "fastconv/launch/launchers.h"

namespace fastconv {

#define FASTCONV_HOST_FAMILY(name)
#define FASTCONV_FAMILY(name)    \
  const Family& name##_family(); \
  Launcher name##_launcher(const KernelEntry&, DType);
#include "fastconv/families/families.def"
#undef FASTCONV_FAMILY

Launcher launcher_of(const KernelEntry& kernel, DType dtype) {
#define FASTCONV_FAMILY(name) \
  if (kernel.family == &name##_family()) return name##_launcher(kernel, dtype);
#include "fastconv/families/families.def"
#undef FASTCONV_FAMILY
  return nullptr;
}

}  // namespace fastconv
