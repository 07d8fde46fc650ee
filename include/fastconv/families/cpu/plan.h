#pragma once

#include <span>

#include "fastconv/planner/registry.h"

namespace fastconv {

std::span<const KernelEntry> cpu_kernels();

}  // namespace fastconv
