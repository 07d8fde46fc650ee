// Which elements are moved, and what the kernels between multiply.
#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/families/space_to_depth/subpixel_plan.h"
#include "native.h"

namespace fastconv {
namespace {

// Elements of the image, each with that of the patches that it comes from or goes to, -1 if with none.
using Moves = std::vector<std::pair<int64_t, int64_t>>;
template <PatchLayout kLayout>
Moves patch_moves(const Patches& patches, int64_t elements) {
  const int64_t vector = patches.vector;
  Moves moves;
  for (int32_t unit = 0; unit < patches.units; ++unit) {
    for (int lane = 0; lane < 32; ++lane) {
      const PatchLane<kLayout> of(patches, unit, lane);
      for (int step = 0; step < kPatchSteps; ++step) {
        const PatchPlace at = of.place(step);
        if (!at.in_image) {
          if (at.in_patches) throw py::index_error("a patch beyond the image");
          continue;
        }
        const bool in_a_row = kLayout == PatchLayout::kRows;
        if (at.image % vector != 0 || (in_a_row && at.patches % vector != 0)) throw py::index_error("not aligned");
        for (int64_t i = 0; i < vector; ++i) {
          const int64_t element = at.patches + i * patches.patches_channel;
          if (at.in_patches && element >= elements) throw py::index_error("beyond the workspace");
          moves.emplace_back(at.image + i, at.in_patches ? element : -1);
        }
      }
    }
  }
  return moves;
}

Moves patch_moves(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  if (const char* reason = offer(kernel, problem, device).why_not) throw py::value_error(reason);
  const Patches patches = make_patches(kernel.config.as<PatchesConfig>(), problem);
  const int64_t elements = patches_bytes(kernel.config.as<PatchesConfig>(), problem) / element_size(problem.dtype);
  return kernel.config.as<PatchesConfig>().layout == PatchLayout::kRows
             ? patch_moves<PatchLayout::kRows>(patches, elements)
             : patch_moves<PatchLayout::kPlanes>(patches, elements);
}

// Of all channels, of what lies in the image.
Products subpixel_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& /*device*/) {
  const SubpixelLaunch launch = make_subpixel(kernel.config.as<SubpixelConfig>(), problem);
  const ConvProblem& inner = launch.inner;
  const int64_t bytes = element_size(problem.dtype);
  if (launch.filter.elements * bytes > launch.bias_offset) throw py::index_error("the filter is in the bias");
  if (launch.filter.elements != inner.k * inner.w_strides.n) throw py::index_error("not the inner filter");
  Products products;
  const int64_t elements = (launch.inner_offset - launch.blocks_offset) / bytes;
  for (const auto& [target, element] : patch_moves<PatchLayout::kRows>(launch.blocks, elements)) {
    if (element < 0) throw py::index_error("outside all blocks");
    const Strides& y = inner.y_strides;
    const int64_t n = element / y.n, p = element % y.n / y.h, q = element % y.h / y.w, filter = element % y.w;
    for (int64_t i = 0; i < inner.w_strides.n; ++i) {
      const int64_t r = i / inner.w_strides.h, s = i % inner.w_strides.h / inner.w_strides.w, c = i % inner.c;
      const int64_t h = p * inner.stride.h - inner.padding.h + r, w = q * inner.stride.w - inner.padding.w + s;
      if (h < 0 || h >= inner.h || w < 0 || w >= inner.w) continue;
      const int64_t place = launch.filter.place(static_cast<int32_t>(filter * inner.w_strides.n + i));
      const Strides& x = inner.x_strides;
      if (place >= 0) products.emplace_back(n * x.n + c * x.c + h * x.h + w * x.w, place, target);
    }
  }
  return products;
}

}  // namespace

void bind_space_to_depth(py::module_& m) {
  m.def("patch_moves", py::overload_cast<const ConvProblem&, const KernelEntry&, const DeviceSpec&>(&patch_moves),
        "problem"_a, "kernel"_a, "device"_a);
  m.def("subpixel_products", unless_refused(subpixel_products), "problem"_a, "kernel"_a, "device"_a);
}

}  // namespace fastconv
