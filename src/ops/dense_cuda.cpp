#include "fastconv/ops/dense.h"

#include <algorithm>

#include "fastconv/ops/cuda_call.h"

namespace fastconv::ops {

bool is_dense(const View& view, bool channels_last) {
  if (view.align < 16) return false;
  const Strides dense = dense_strides(view.sizes, channels_last);
  const int64_t *found = &view.strides.n, *wanted = &dense.n;
  for (int i = 0; i < 4; ++i) {
    if (view.sizes[i] > 1 && found[i] != wanted[i]) return false;
  }
  return true;
}

Tensor dense(const Tensor& tensor, bool channels_last) {
  const View view(tensor);
  if (is_dense(view, channels_last)) return tensor;
  Tensor copy = empty(view.sizes, channels_last, true, tensor);
  return torch::stable::copy_(copy, tensor), copy;
}

Tensor dense_like(const Tensor& images, bool channels_last, const char* name, const Tensor& tensor,
                  const char* name_of_images) {
  check_operands({name_of_images, images}, {name, tensor});
  const auto size = tensor.sizes(), wanted = images.sizes();
  if (!std::equal(size.begin(), size.end(), wanted.begin(), wanted.end())) {
    fail(std::string(name) + " must have the size of the " + name_of_images);
  }
  return dense(tensor, channels_last);
}

OptionalTensor cast_filters(const Tensor& filters, const Tensor& like) {
  check_same_device({"input", like}, {"weight", filters});
  if (filters.scalar_type() == like.scalar_type()) return std::nullopt;
  const View view(filters, Role::kFilter);
  const bool channels_last = is_channels_last(view);
  Tensor result = empty(view.sizes, channels_last, true, like);
  if (filters.dim() != 4 || !is_dense(view, channels_last)) return torch::stable::copy_(result, filters);
  const DType from = check_operands({"weight", filters}, {"weight", filters});
  const DType to = check_operands({"weight", result}, {"weight", result});
  const CudaCall gpu(filters.get_device_index());
  cast_cuda(from, to, filters.data_ptr(), result.data_ptr(), filters.numel(), gpu.stream());
  return result;
}

Activation activation_of(int64_t index) {
  if (index < 0 || index >= kActivations) fail("there is no activation " + std::to_string(index));
  return static_cast<Activation>(index);
}

}  // namespace fastconv::ops
