#include "fastconv/norm/batch_norm.cuh"

#include "fastconv/core/integers.h"
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

LaunchShape finishing(int64_t channels) { return {ceil_div(channels, kFinishLanes), kFinishLanes * kFinishStrands}; }

template <typename T>
void forward(const NormProblem& problem, const NormPlan& plan, const BatchNormForward& call, Stream& stream) {
  using Acc = Accumulator<T>;
  const auto shape = [&plan](size_t smem) { return LaunchShape{plan.walk.grid(), kNormThreads, int(smem)}; };
  auto* statistics = static_cast<Acc*>(call.statistics);
  auto* partial = static_cast<Acc*>(call.workspace);
  if (call.training) {
    with_vector<T>(plan, [&]<int kVector, bool>() {
      launch("norm_moments", norm_moments<T, kVector>, shape(sizeof(MomentsRing<T, kVector>)), stream, plan.walk,
             call.x, partial);
    });
    const FinishMoments finish{problem.c,         plan.walk.parts(), problem.of_channel(),
                               call.running_mean, call.running_var,  call.momentum,
                               call.eps,          call.batches};
    launch("norm_finish_moments", norm_finish_moments<T>, finishing(problem.c), stream, finish,
           static_cast<const Acc*>(partial), statistics);
  }
  const NormParameter known{nullptr, true};
  const NormApply apply{plan.walk,
                        call.x,
                        call.residual,
                        call.weight,
                        call.bias,
                        call.training ? known : call.running_mean,
                        call.training ? known : call.running_var,
                        call.activation,
                        call.eps,
                        call.training ? call.batches : nullptr,
                        call.y,
                        call.mask};
  with_vector<T>(plan, [&]<int kVector, bool kPerElement>() {
    const auto kernel = cuts_off(call.activation) ? norm_apply<T, kVector, kPerElement, false>
                                                  : norm_apply<T, kVector, kPerElement, true>;
    launch("norm_apply", kernel, shape(sizeof(ApplyRing<T, kVector>)), stream, apply, statistics);
  });
}

template <typename T>
void backward(const NormProblem& problem, const NormPlan& plan, const BatchNormBackward& call, Stream& stream) {
  using Acc = Accumulator<T>;
  const auto shape = [&plan](size_t smem) { return LaunchShape{plan.walk.grid(), kNormThreads, int(smem)}; };
  const auto* statistics = static_cast<const Acc*>(call.statistics);
  auto* partial = static_cast<Acc*>(call.workspace);
  Acc* sums = partial + NormGradients<Acc>::kFields * plan.walk.parts() * problem.c;
  const NormGradient gradient{plan.walk, call.x,      call.residual, call.grad_y,
                              call.mask, call.weight, call.bias,     call.activation};
  const bool cuts = cuts_off(call.activation) && (call.residual == nullptr || call.mask != nullptr);
  const auto with_kernels = [&](const auto& body) {
    with_vector<T>(plan, [&]<int kVector, bool kPerElement>() {
      cuts ? body.template operator()<kVector, kPerElement, false>()
           : body.template operator()<kVector, kPerElement, true>();
    });
  };
  const bool for_input = call.training && call.grad_x != nullptr;
  if (for_input || call.grad_weight.data != nullptr || call.grad_bias.data != nullptr) {
    with_kernels([&]<int kVector, bool kPerElement, bool kCurved>() {
      launch("norm_gradient_sums", norm_gradient_sums<T, kVector, kPerElement, kCurved>,
             shape(sizeof(GradientRing<T, kVector, kCurved>)), stream, gradient, statistics, partial);
    });
    launch("norm_finish_gradients", norm_finish_gradients<T>, finishing(problem.c), stream, problem.c,
           plan.walk.parts(), static_cast<const Acc*>(partial), statistics, sums, call.grad_weight, call.grad_bias);
  }
  if (call.grad_x == nullptr && call.grad_residual == nullptr) return;
  with_kernels([&]<int kVector, bool kPerElement, bool kCurved>() {
    launch("norm_gradient_apply", norm_gradient_apply<T, kVector, kPerElement, kCurved>,
           shape(sizeof(GradientRing<T, kVector, kCurved>)), stream, gradient, statistics,
           static_cast<const Acc*>(for_input ? sums : nullptr), Acc{1} / static_cast<Acc>(problem.of_channel()),
           call.grad_x, call.grad_residual);
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
  with_dtype(problem.dtype, [&]<typename T>() { forward<T>(problem, plan, call, ours); });
}

void batch_norm_backward_cuda(const NormProblem& problem, const DeviceSpec& device, const BatchNormBackward& call,
                              void* stream, bool behind_ours) {
  Stream ours{static_cast<cudaStream_t>(stream), behind_ours};
  const NormPlan plan = plan_norm(problem, device);
  with_dtype(problem.dtype, [&]<typename T>() { backward<T>(problem, plan, call, ours); });
}

}  // namespace fastconv
