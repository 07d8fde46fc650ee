#include "fastconv/norm/batch_norm.cuh"

#include <algorithm>

#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

// body.operator()<kVector, kPerElement>().
template <typename T, typename Body>
void with_vector(const NormPlan& plan, const Body& body) {
  constexpr int kVector = kNormVectorBytes / sizeof(T);
  if (plan.vector == 1) {
    body.template operator()<1, false>();
  } else if (plan.per_element) {
    body.template operator()<kVector, true>();
  } else {
    body.template operator()<kVector, false>();
  }
}

template <typename Ring>
LaunchShape shape_of(const NormPlan& plan, bool has_sums) {
  LaunchShape shape{std::min(plan.walk.grid(), plan.room), kNormThreads, sizeof(Ring)};
  shape.cooperative = has_sums;
  return shape;
}

template <typename T>
void forward(const NormPlan& plan, const BatchNormForward& call, Stream& stream) {
  with_vector<T>(plan, [&]<int kVector, bool kPerElement>() {
    static_assert(sizeof(MomentsRing<T, kVector>) == sizeof(ApplyRing<T, kVector>));
    const auto kernel = cuts_off(call.activation) ? norm_forward<T, kVector, kPerElement, false>
                                                  : norm_forward<T, kVector, kPerElement, true>;
    launch("norm_forward", kernel, shape_of<ApplyRing<T, kVector>>(plan, call.training), stream, plan.walk, call);
  });
}

template <typename T>
void backward(const NormProblem& problem, const NormPlan& plan, const BatchNormBackward& call, Stream& stream) {
  if (!call.has_images() && !call.has_sums()) return;
  const bool cuts = cuts_off(call.activation) && (call.residual == nullptr || call.mask != nullptr);
  with_vector<T>(plan, [&]<int kVector, bool kPerElement>() {
    const auto run = [&]<bool kCurved>() {
      launch("norm_backward", norm_backward<T, kVector, kPerElement, kCurved>,
             shape_of<GradientRing<T, kVector, kCurved>>(plan, call.has_sums()), stream, plan.walk, call,
             problem.of_channel());
    };
    cuts ? run.template operator()<false>() : run.template operator()<true>();
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
  with_dtype(problem.dtype, [&]<typename T>() { backward<T>(problem, plan, call, ours); });
}

}  // namespace fastconv
