// GPUs by their data sheets: what is planned for where none is present, or another one is to be acted as.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fastconv/planner/device_spec.h"

namespace fastconv {

struct Gpu {
  const char* name;
  DeviceSpec spec;
};

// By architecture. The first of each stands for it.
std::span<const Gpu> known_gpus();

// By its name, or the first of an architecture, compute capability x 10. Throws std::runtime_error, which begins
// with `what` and lists what is known.
const DeviceSpec& gpu_of(std::string_view name_or_arch, const std::string& what);

// What an SM does in a clock, by data sheets: multiply-adds of float32, and those of 16 bits that mma.sync adds up in
// float32. Of 8.6, 8.9 and 12.0 those for data centers; GeForce has half the latter.
struct SmRates {
  double multiply_adds, products;
};
SmRates sm_rates(int arch);
// Products as a share of Hopper's, on which costs were measured.
inline double product_rate(int arch) { return sm_rates(arch).products / sm_rates(90).products; }

// What is planned for on `device` when it is to act as `other`: no more multiprocessors and shared memory than it has.
// Throws std::runtime_error, which begins with `what`, if its kernels would not run there.
DeviceSpec acting_as(const DeviceSpec& device, const DeviceSpec& other, const std::string& what);

// What a device of `arch` has kernels for in what was compiled for a list of architectures, as TORCH_CUDA_ARCH_LIST or
// CMake have it; 0: it runs none of it. Machine code runs on later chips of its major version, too, PTX on all later
// ones; neither if it is for one chip's own features ("9.0a"). Kernels for newer chips than the code was compiled for
// are empty, those for sm_90a wherever it was not compiled for just that: Hopper then counts as 89.
int arch_of_code(std::string_view archs, int arch);

// The oldest driver that a CUDA runtime works with; versions as CUDA counts them, 12040.
int oldest_driver(int runtime_version);

// Why a library with this runtime cannot run with a driver that is for `driver_version`, or empty.
std::string why_not_with_driver(int runtime_version, int driver_version);

}  // namespace fastconv
