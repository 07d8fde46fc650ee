#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "fastconv/cpu/conv_cpu.h"

namespace fastconv {

// Hands items out one at a time, since they differ in cost: make_worker() is called once a thread, and what it returns
// is called with each item. `cost` of an item is in multiply-adds.
template <class MakeWorker>
void for_each_item(const CpuRuntime& runtime, int64_t items, int64_t cost, const MakeWorker& make_worker) {
  constexpr int64_t kWorthwhileCost = 1 << 18;  // about 10 us, what it takes to wake a thread
  if (items == 0) return;
  std::atomic<int64_t> next{0};
  runtime.parallel_for(items, kWorthwhileCost / (cost + 1) + 1, [&](int64_t, int64_t) {
    int64_t item = next++;
    if (item >= items) return;
    auto worker = make_worker();
    for (; item < items; item = next++) worker(item);
  });
}

}  // namespace fastconv
