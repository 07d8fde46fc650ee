// Filters as large as their strides: patches are moved, the inner plan multiplies.
#include "fastconv/kernels/patches.cuh"

#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"
#include "fastconv/planner/patches_family.h"

namespace fastconv {
namespace {

template <typename T, int kVector>
void move(const Plan& plan, const Patches& patches, void* image, void* workspace, cudaStream_t stream) {
  auto* const x = static_cast<T*>(image);
  auto* const z = static_cast<T*>(workspace);
  const LaunchShape shape{plan.grid, kPatchThreads};
  const char* const name = plan.kernel->name;
  if (plan.kernel->pass == Pass::kDgrad) {
    launch(name, scatter_patches<T, kVector>, shape, stream, patches, z, x);
  } else if (plan.kernel->patches.layout == PatchLayout::kRows) {
    launch(name, gather_patches<T, kVector, PatchLayout::kRows>, shape, stream, patches, x, z);
  } else {
    launch(name, gather_patches<T, kVector, PatchLayout::kPlanes>, shape, stream, patches, x, z);
  }
}

template <typename T, int kVector = 16 / sizeof(T)>
void move_vectors(const Plan& plan, const Patches& patches, void* image, void* workspace, cudaStream_t stream) {
  if (patches.vector == kVector) return move<T, kVector>(plan, patches, image, workspace, stream);
  if constexpr (kVector > 1) move_vectors<T, kVector / 2>(plan, patches, image, workspace, stream);
}

void move_elements(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, cudaStream_t stream) {
  const Patches patches = make_patches(plan.kernel->patches, problem);
  switch (element_size(problem.dtype)) {
    case 2: return move_vectors<uint16_t>(plan, patches, buffers.x, buffers.workspace, stream);
    case 4: return move_vectors<uint32_t>(plan, patches, buffers.x, buffers.workspace, stream);
    default: return move_vectors<uint64_t>(plan, patches, buffers.x, buffers.workspace, stream);
  }
}

}  // namespace

void launch_patches(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, cudaStream_t stream) {
  ConvBuffers inner = buffers;
  inner.x = buffers.workspace;
  inner.workspace = static_cast<char*>(buffers.workspace) + patches_bytes(plan.kernel->patches, problem);
  if (problem.pass != Pass::kDgrad) move_elements(plan, problem, buffers, stream);
  run_cuda(plan.inner->plan, plan.inner->problem, inner, stream);
  if (problem.pass == Pass::kDgrad) move_elements(plan, problem, buffers, stream);
}

}  // namespace fastconv
