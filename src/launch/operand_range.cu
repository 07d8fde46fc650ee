// Whether one scale fits the numbers of each of two tensors: measured before the kernel that needs to know.
#include "fastconv/tile/operand_range.cuh"

#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"
#include "fastconv/planner/scaled.h"

namespace fastconv {

const OperandRange* measure_operands(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                                     Stream& stream) {
  const auto [first, second] = read_tensors(problem);
  auto* const workspace = static_cast<char*>(buffers.workspace);
  auto* const blocks = reinterpret_cast<TensorRange*>(workspace + kRangesAt);
  auto* const range = reinterpret_cast<OperandRange*>(workspace);
  const RangeParams params{
      {problem.pass == Pass::kDgrad ? buffers.y : buffers.x, problem.pass == Pass::kWgrad ? buffers.y : buffers.w},
      {first.values / 4, second.values / 4},
      {blocks, blocks + kMaxRangeBlocks},
      range,
      widest_range(plan.kernel->scaled_parts)};
  const int64_t most = std::max<int64_t>(1, ceil_div(std::max(params.quads[0], params.quads[1]), kRangeThreads));
  LaunchShape shape{std::min(most, range_blocks(cuda_device_spec(current_cuda_device()))), kRangeThreads};
  shape.cooperative = true;
  launch(plan.kernel->name, measure_range, shape, stream, params);
  return range;
}

}  // namespace fastconv
