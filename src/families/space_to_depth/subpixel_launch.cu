// Outputs of few channels: the filter is written for blocks of them, the inner plan computes, blocks become an image.
#include "fastconv/families/space_to_depth/subpixel.cuh"

#include "fastconv/core/integers.h"
#include "fastconv/families/space_to_depth/launch.h"
#include "fastconv/families/space_to_depth/subpixel_plan.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launchers.h"

namespace fastconv {
namespace {

template <typename T, typename Bias = T>
void write_filter(const Plan& plan, const SubpixelFilter& filter, const ConvBuffers& from, const ConvBuffers& to,
                  Stream& stream) {
  const LaunchShape shape{ceil_div(filter.elements, kSubpixelThreads), kSubpixelThreads};
  launch(plan.kernel->name, write_subpixel_filter<T, Bias>, shape, stream, filter, static_cast<const T*>(from.w),
         static_cast<const Bias*>(from.bias), static_cast<T*>(to.w), static_cast<Bias*>(const_cast<void*>(to.bias)));
}

}  // namespace

void launch_subpixel(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const SubpixelLaunch subpixel = make_subpixel(plan.kernel->config.as<SubpixelConfig>(), problem);
  auto* const workspace = static_cast<char*>(buffers.workspace);
  const bool dgrad = problem.pass == Pass::kDgrad;
  ConvBuffers inner;
  inner.x = dgrad ? buffers.y : buffers.x;
  inner.w = workspace;
  inner.y = workspace + subpixel.blocks_offset;
  inner.bias = buffers.bias == nullptr ? nullptr : workspace + subpixel.bias_offset;
  inner.activation = buffers.activation, inner.wide_bias = buffers.wide_bias;
  inner.workspace = workspace + subpixel.inner_offset;
  switch (element_size(problem.dtype)) {
    case 2:
      buffers.wide_bias ? write_filter<uint16_t, uint32_t>(plan, subpixel.filter, buffers, inner, stream)
                        : write_filter<uint16_t>(plan, subpixel.filter, buffers, inner, stream);
      break;
    case 4: write_filter<uint32_t>(plan, subpixel.filter, buffers, inner, stream); break;
    default: write_filter<uint64_t>(plan, subpixel.filter, buffers, inner, stream);
  }
  const InnerPlan& product = plan.inner.front();
  run_plan(product.plan, product.problem, inner, stream);
  launch_move(PatchMove::kScatterRows, plan, subpixel.blocks, problem.dtype, dgrad ? buffers.x : buffers.y, inner.y,
              stream);
}

}  // namespace fastconv
