// Filters as large as their strides: patches are moved, the inner plan multiplies.
#include "fastconv/families/space_to_depth/patches.cuh"

#include "fastconv/families/space_to_depth/launch.h"
#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launchers.h"

namespace fastconv {
namespace {

template <typename T, int kVector>
void move(PatchMove how, const Plan& plan, const Patches& patches, void* image, void* workspace, Stream& stream) {
  auto* const x = static_cast<T*>(image);
  auto* const z = static_cast<T*>(workspace);
  const LaunchShape shape{plan.grid, kPatchThreads};
  const char* const name = plan.kernel->name;
  switch (how) {
    case PatchMove::kGatherRows:
      return launch(name, gather_patches<T, kVector, PatchLayout::kRows>, shape, stream, patches, x, z);
    case PatchMove::kGatherPlanes:
      return launch(name, gather_patches<T, kVector, PatchLayout::kPlanes>, shape, stream, patches, x, z);
    case PatchMove::kScatterRows: return launch(name, scatter_patches<T, kVector>, shape, stream, patches, z, x);
  }
}

template <typename T, int kVector = 16 / sizeof(T)>
void move_vectors(PatchMove how, const Plan& plan, const Patches& patches, void* image, void* workspace,
                  Stream& stream) {
  if (patches.vector == kVector) return move<T, kVector>(how, plan, patches, image, workspace, stream);
  if constexpr (kVector > 1) move_vectors<T, kVector / 2>(how, plan, patches, image, workspace, stream);
}

}  // namespace

void launch_move(PatchMove move, const Plan& plan, const Patches& patches, DType dtype, void* image, void* workspace,
                 Stream& stream) {
  switch (element_size(dtype)) {
    case 2: return move_vectors<uint16_t>(move, plan, patches, image, workspace, stream);
    case 4: return move_vectors<uint32_t>(move, plan, patches, image, workspace, stream);
    default: return move_vectors<uint64_t>(move, plan, patches, image, workspace, stream);
  }
}

void launch_patches(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const PatchesConfig& config = plan.kernel->config.as<PatchesConfig>();
  ConvBuffers inner = buffers;
  inner.x = buffers.workspace;
  inner.workspace = static_cast<char*>(buffers.workspace) + patches_bytes(config, problem);
  auto move = [&](PatchMove how) {
    launch_move(how, plan, make_patches(config, problem), problem.dtype, buffers.x, buffers.workspace, stream);
  };
  const bool scatters = problem.pass == Pass::kDgrad;
  if (!scatters) move(config.layout == PatchLayout::kRows ? PatchMove::kGatherRows : PatchMove::kGatherPlanes);
  const InnerPlan& product = plan.inner.front();
  run_plan(product.plan, product.problem, inner, stream);
  if (scatters) move(PatchMove::kScatterRows);
}

}  // namespace fastconv
