#include <vector>

#include "fastconv/planner/registry.h"

// A test compiles another list in its place.
#ifndef FASTCONV_FAMILIES
#define FASTCONV_FAMILIES "fastconv/families/families.def"
#endif

namespace fastconv {

#define FASTCONV_FAMILY(name) const Family& name##_family();
#define FASTCONV_HOST_FAMILY FASTCONV_FAMILY
#include FASTCONV_FAMILIES
#undef FASTCONV_FAMILY

namespace {

std::vector<KernelEntry> build_table() {
  std::vector<KernelEntry> table;
#define FASTCONV_FAMILY(name) name##_family().add_kernels(table);
#include FASTCONV_FAMILIES
#undef FASTCONV_FAMILY
  return table;
}

}  // namespace

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = build_table();
  return table;
}

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry& entry : kernel_table()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace fastconv
