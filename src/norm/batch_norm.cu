#include "fastconv/norm/batch_norm.cuh"

#include <algorithm>

#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

// body.operator()<kReads>().
template <typename Body>
void with_reads(NormReads reads, const Body& body) {
  switch (reads) {
    case NormReads::kChannel: return body.template operator()<NormReads::kChannel>();
    case NormReads::kChannels: return body.template operator()<NormReads::kChannels>();
    case NormReads::kApart: return body.template operator()<NormReads::kApart>();
  }
}

// In one launch, or where its blocks cannot run at once, in one for each phase. args: all but the phases.
template <typename Ring, typename Kernel, typename... Args>
void run(const char* name, Kernel kernel, const NormPlan& plan, bool sums, bool images, Stream& stream,
         const Args&... args) {
  LaunchShape shape{plan.walk.grid(), kNormThreads, sizeof(Ring)};
  if (sums) {
    shape.grid = std::min(shape.grid, plan.room);
    if (launch_together(name, kernel, shape, stream, args..., NormPhases{true, true, images})) return;
    launch(name, kernel, shape, stream, args..., NormPhases{true, false, false});
    launch(name, kernel, shape, stream, args..., NormPhases{false, true, false});
  }
  if (images) launch(name, kernel, shape, stream, args..., NormPhases{false, false, true});
}

template <typename T>
void forward(const NormPlan& plan, const BatchNormForward& call, Stream& stream) {
  with_reads(plan.reads, [&]<NormReads kReads>() {
    using Ring = ApplyRing<T>;
    static_assert(sizeof(MomentsRing<T>) == sizeof(Ring));
    const auto kernel = cuts_off(call.activation) ? norm_forward<T, kReads, false> : norm_forward<T, kReads, true>;
    run<Ring>("norm_forward", kernel, plan, call.training, true, stream, plan.walk, call);
  });
}

template <typename T>
void backward(const NormPlan& plan, const BatchNormBackward& call, Stream& stream) {
  with_reads(plan.reads, [&]<NormReads kReads>() {
    const auto run_slopes = [&]<NormSlopes kSlopes>() {
      run<GradientRing<T, kSlopes>>("norm_backward", norm_backward<T, kReads, kSlopes>, plan, call.has_sums(),
                                    call.has_images(), stream, plan.walk, call);
    };
    if (call.residual != nullptr && (call.mask == nullptr || !cuts_off(call.activation))) {
      run_slopes.template operator()<NormSlopes::kSum>();
    } else if (cuts_off(call.activation)) {
      run_slopes.template operator()<NormSlopes::kCutOff>();
    } else {
      run_slopes.template operator()<NormSlopes::kCurve>();
    }
  });
}

}  // namespace

int64_t batch_norm_workspace_bytes(const NormProblem& problem, const DeviceSpec& device) {
  const int64_t parts = plan_norm(problem, device).walk.parts();
  const int64_t bytes = problem.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
  return (NormMoments<float>::kFields * parts + NormGradients<float>::kFields) * problem.c * bytes;
}

void batch_norm_forward_cuda(const NormProblem& problem, const DeviceSpec& device, const BatchNormForward& call,
                             void* stream, bool behind_ours) {
  Stream ours{static_cast<cudaStream_t>(stream), behind_ours};
  const NormPlan plan = plan_norm(problem, device);
  with_dtype(problem.dtype, [&]<typename T>() { forward<T>(plan, call, ours); });
}

void batch_norm_backward_cuda(const NormProblem& problem, const DeviceSpec& device, const BatchNormBackward& call,
                              void* stream, bool behind_ours) {
  Stream ours{static_cast<cudaStream_t>(stream), behind_ours};
  const NormPlan plan = plan_norm(problem, device);
  with_dtype(problem.dtype, [&]<typename T>() { backward<T>(plan, call, ours); });
}

}  // namespace fastconv
