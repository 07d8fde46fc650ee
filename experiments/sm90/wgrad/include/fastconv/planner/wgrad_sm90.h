// Host side of the 16-bit weight gradient for sm_90a: which compiled configuration runs a problem and with what
// geometry. Pure functions of the problem and the device.
//
// Pixels are the reduction, taken 16 at a time as two groups of 8 staged rows. Two ways to cut them into tiles:
//   rectangular  tile_p x tile_q output pixels of one image, x as the rectangle that they read;
//   linear       whole rows, of several images if they are small, in one order of rows padded just so much that a tap
//   is
//                the same shift for every pixel: less waste where rows are short and no multiple of 8.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/halo_sm90.h"
#include "fastconv/tile/wgrad_params.h"

namespace fastconv {

// What is fixed when a kernel is compiled, apart from the dtype.
struct WgradConfig {
  int32_t channels;    // of a staged row of x: 64, 32 or 16
  int32_t blocks;      // of channels or taps in a unit, that is, in one instruction
  int32_t units;       // a consumer warpgroup
  int32_t warpgroups;  // of consumers
  bool tma;            // x and dy staged by the copy engine, otherwise by producer warps where it cannot read them
};
std::ostream& operator<<(std::ostream& out, const WgradConfig& config);
const std::vector<WgradConfig>& wgrad_configs();

struct WgradPlan {
  WgradConfig config;
  WgradParams params;          // without addresses
  HaloTensorMap x_map, y_map;  // c, group, w, h, n
  int64_t grid;
  int32_t smem_bytes;
  int64_t workspace_bytes;  // partial sums
  double cost_us;           // model
};
std::ostream& operator<<(std::ostream& out, const WgradPlan& plan);

// Empty if the kernels can run the problem; otherwise why not.
std::string wgrad_why_not(const ConvProblem& problem, const DeviceSpec& device);
// Every way to run it, best first.
std::vector<WgradPlan> wgrad_plans(const ConvProblem& problem, const DeviceSpec& device);

}  // namespace fastconv
