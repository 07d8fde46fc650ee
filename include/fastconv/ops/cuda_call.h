// The device and the stream of a call of an op.
#pragma once

#include <optional>

#include "fastconv/launch/launch.h"
#include "fastconv/ops/torch_stable.h"

namespace fastconv::ops {

class CudaCall {
 public:
  explicit CudaCall(int device_index) : spec_(cuda_device_spec(device_index)) {
    // A guard costs a tenth of a microsecond, and is seldom needed.
    if (current_cuda_device() != device_index) guard_.emplace(device_index);
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream_));
  }
  const DeviceSpec& device() const { return spec_; }
  void* stream() const { return stream_; }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  const DeviceSpec& spec_;
  void* stream_ = nullptr;
};

}  // namespace fastconv::ops
