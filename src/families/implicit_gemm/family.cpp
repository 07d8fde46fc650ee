// Convolution as the product of two matrices that are never written (direct, mma), or written first (im2col).
#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/families/implicit_gemm/direct_plan.h"
#include "fastconv/families/implicit_gemm/im2col_plan.h"
#include "fastconv/families/implicit_gemm/mma_config.h"
#include "fastconv/families/implicit_gemm/mma_plan.h"
#include "fastconv/families/implicit_gemm/tile_config.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class ImplicitGemm final : public Family {
 public:
  ImplicitGemm() : Family("implicit_gemm") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    int line = 0;
    auto add_tiled = [&](const char* name, Pass pass, const TileShape& tile, const GemmConfig& config,
                         unsigned dtypes) {
      KernelEntry entry{name, pass, this, dtypes, kSm70, tile, config, line++};
      entry.any_size = config.method == GemmMethod::kIm2col;
      entry.multiply_adds = true;
      table.push_back(entry);
    };
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes)                                      \
  add_tiled(#name, Pass::pass, {m, n, kTileDepth}, {GemmMethod::kDirect, VectorReads::reads, thread_m, thread_n}, \
            dtypes);
#include "fastconv/families/implicit_gemm/direct.def"
#undef FASTCONV_KERNEL
    line = 0;
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes)                                      \
  add_tiled(#name, Pass::pass, {m, n, kTileDepth}, {GemmMethod::kIm2col, VectorReads::reads, thread_m, thread_n}, \
            dtypes);
#include "fastconv/families/implicit_gemm/im2col.def"
#undef FASTCONV_KERNEL
    line = 0;
    auto add_mma = [&](const char* name, VectorReads reads, MmaConfig config, unsigned dtypes) {
      const TileShape tile{config.m, config.n, config.depth()};
      table.push_back({name, Pass::kWgrad, this, dtypes, kSm80, tile, GemmConfig{GemmMethod::kMma, reads}, line++});
    };
#define MMA_KERNEL(name, reads, m, n, dtypes) add_mma(#name, VectorReads::reads, {m, n}, dtypes);
#include "fastconv/families/implicit_gemm/mma.def"
#undef MMA_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    switch (kernel.config.as<GemmConfig>().method) {
      case GemmMethod::kDirect: return plan_direct(kernel, problem, device);
      case GemmMethod::kIm2col: return plan_im2col(kernel, problem, device);
      case GemmMethod::kMma: break;
    }
    return plan_mma(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    if (plan.tiling.holds<Im2colTiling>()) describe_im2col(out, plan);
  }
};

}  // namespace

const Family& implicit_gemm_family() {
  static const ImplicitGemm family;
  return family;
}

}  // namespace fastconv
