// How the kernels of several taps write each phase of a strided gradient.
#include "fastconv/families/pointwise/taps_plan.h"
#include "native.h"

namespace fastconv {

void bind_pointwise(py::module_& m) {
  m.def(
      "tap_vector_bytes",
      [](const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
        const Offer found = offer(kernel, problem, device);
        if (found.why_not) throw py::value_error(found.why_not);
        const Pair phases = tap_phases(problem);
        std::vector<int32_t> bytes;
        for (int32_t phase = 0; phase < phases.h * phases.w; ++phase) {
          const auto columns = static_cast<int32_t>(phases.w);
          const TapTiling& tiling = found.plan.tiling.as<TapTiling>();
          const OperandForm operands = kernel.config.as<PointwiseConfig>().operands;
          const TapParams params =
              tap_params(problem, operands, tiling, found.plan.split, phase / columns, phase % columns);
          bytes.push_back(params.out.vector_bytes);
        }
        return bytes;
      },
      "problem"_a, "kernel"_a, "device"_a);
}

}  // namespace fastconv
