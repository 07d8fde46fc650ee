#pragma once

#include <cstdint>

namespace fastconv {

// What the planner needs to know of a device. A plan is a pure function of a ConvProblem and one of these.
struct DeviceSpec {
  bool is_cuda = false;
  int arch = 0;  // compute capability x 10: 80, 90, 100, ...
  int sm_count = 0;
  int64_t smem_optin_bytes = 0;  // most shared memory a block may ask for
  // By its data sheet; an H200's where nothing else is known.
  double clock_mhz = 1980;
  double memory_gbps = 4917;  // 10^9 bytes a second
  int64_t l2_bytes = 60 << 20;
  int threads = 1;                      // CPU: threads of torch's pool
  int64_t workspace_bytes = INT64_MAX;  // that are left, to the inner plan of another

  bool operator==(const DeviceSpec&) const = default;
};

}  // namespace fastconv
