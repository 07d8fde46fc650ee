// Host side of the halo engine (sm_90a, 16-bit, forward and input gradient): which compiled configuration runs a
// problem and with what geometry. Pure functions of the problem and the device.
//
// An output tile is made of M-blocks of 64 pixels. Two ways to cut the output into tiles:
//   rectangular  tile_p x tile_q pixels of one image; the halo is the rectangle that they read;
//   linear       runs of positions in the order (image, row, column) of rows padded to linear_w and images padded to
//                linear_h rows: just enough padding that a tap is the same shift for every position. It wastes
//                1 - Q P / (linear_w linear_h) however small the map is, and a tile may span images.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/tile/halo_params.h"

namespace fastconv {

// What is fixed when a kernel is compiled, apart from the dtype.
struct HaloConfig {
  int32_t block_k;   // filters a tile
  int32_t m_blocks;  // M-blocks a consumer warpgroup
  int32_t channels;  // of a staged halo: 64, 32 or 16
  HaloStaging staging;
  FilterTile filter;
};
std::ostream& operator<<(std::ostream& out, const HaloConfig& config);
const std::vector<HaloConfig>& halo_configs();

// A tensor map, innermost dimension first. Strides in bytes, of dimensions 1 to 4.
struct HaloTensorMap {
  uint64_t size[5], stride[4];
  uint32_t box[5], step[5];
};

struct HaloPlan {
  HaloConfig config;
  HaloParams params;         // without addresses
  HaloTensorMap in_map;      // c, group, w, h, n
  HaloTensorMap filter_map;  // c, s, r, k, group
  int64_t grid;
  int32_t smem_bytes;
  int64_t packed_filter_bytes;  // workspace
  double cost_us;               // model
};
std::ostream& operator<<(std::ostream& out, const HaloPlan& plan);

// Empty if the engine can run the problem; otherwise why not.
std::string halo_why_not(const ConvProblem& problem, const DeviceSpec& device);
// Every way to run it, best first.
std::vector<HaloPlan> halo_plans(const ConvProblem& problem, const DeviceSpec& device);

}  // namespace fastconv
