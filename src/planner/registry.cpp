#include "fastconv/planner/registry.h"

#include <vector>

#include "fastconv/planner/cpu_family.h"
#include "fastconv/planner/direct_family.h"
#include "fastconv/planner/im2col_family.h"
#include "fastconv/tile/tile_config.h"

namespace fastconv {
namespace {

std::vector<KernelEntry> build_table() {
  std::vector<KernelEntry> table = {
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes)      \
  {#name,       Pass::pass,         true,     {m, n, kTileDepth}, direct_why_not, \
   direct_plan, VectorReads::reads, thread_m, thread_n,           dtypes},
#include "../launch/configs/direct.def"
#undef FASTCONV_KERNEL
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes)      \
  {#name,       Pass::pass,         true,     {m, n, kTileDepth}, im2col_why_not, \
   im2col_plan, VectorReads::reads, thread_m, thread_n,           dtypes},
#include "../launch/configs/im2col.def"
#undef FASTCONV_KERNEL
  };
  const std::span<const KernelEntry> cpu = cpu_kernels();
  table.insert(table.end(), cpu.begin(), cpu.end());
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
