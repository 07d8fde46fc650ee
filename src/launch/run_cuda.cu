#include <stdexcept>
#include <string>

#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"
#include "fastconv/planner/scaled.h"

namespace fastconv {

void run_plan(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const bool compiled = plan.kernel->is_cuda() && (plan.kernel->dtypes & dtype_bit(problem.dtype)) != 0;
  const Launcher launcher = compiled ? launcher_of(*plan.kernel, problem.dtype) : nullptr;
  if (launcher == nullptr) {
    throw std::runtime_error(std::string("fastconv: ") + plan.kernel->name + " is no CUDA kernel for " +
                             to_string(problem.dtype));
  }
  if (!is_scaled(*plan.kernel)) return launcher(plan, problem, buffers, stream);
  // One of the two kernels finds its gate closed.
  ConvBuffers gated = buffers;
  gated.gate = {measure_operands(plan, problem, buffers, stream), true};
  gated.workspace = static_cast<char*>(buffers.workspace) + kRangeBytes;
  launcher(plan, problem, gated, stream);
  gated.gate.fits = false;
  const Plan& others = plan.others.front();
  launcher_of(*others.kernel, problem.dtype)(others, problem, gated, stream);
}

void run_cuda(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, void* stream,
              bool behind_ours) {
  // A backward pass computes the input's gradient before the weight's.
  Stream ours{static_cast<cudaStream_t>(stream), behind_ours || problem.pass == Pass::kWgrad};
  run_plan(plan, problem, buffers, ours);
}

}  // namespace fastconv
