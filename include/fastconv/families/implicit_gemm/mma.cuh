// The tiled kernel on tensor cores of any GPU from sm_80 on: the convolution that direct.cuh makes a matrix product, of
// float32 in TF32. Operands are copied as they lie, and rounded on their way to the products.
#pragma once

#include "fastconv/families/implicit_gemm/mma_mainloop.cuh"
#include "fastconv/families/implicit_gemm/store_mma_tile.cuh"
#include "fastconv/families/implicit_gemm/tables.cuh"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

template <typename Gemm, typename Config>
struct MmaTables {
  DepthTable depth_a, depth_b;
  GemmTables<Gemm, Config, float> gemm;
};

// AccessA, AccessB: OperandAccess.
template <typename T, typename Config, typename AccessA, typename AccessB, typename Gemm>
__global__ void __launch_bounds__(kMmaThreads)
    mma_gemm(const __grid_constant__ typename Gemm::Params params, const __grid_constant__ GemmBuffers<T> buffers,
             int32_t stages) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr int kDepth = Config::kDepth, kStageBytes = Config::kConfig.stage_bytes();
  constexpr bool kRowsA = AccessA::kAlongRows, kRowsB = AccessB::kAlongRows;
  extern __shared__ uint4 mma_smem[];
  auto& tables = *reinterpret_cast<MmaTables<Gemm, Config>*>(mma_smem);
  static_assert(sizeof(tables) <= Config::kConfig.table_bytes());
  const uint32_t ring = ptx::smem_address(mma_smem) + Config::kConfig.table_bytes();
  const auto thread = static_cast<int>(threadIdx.x);

  fill_tables<Config, Gemm>(params, buffers, tables.gemm);
  const Gemm gemm{params, tables.gemm.tile};
  const int32_t begin = tables.gemm.tile.depth_begin, length = tables.gemm.tile.depth_end - begin;
  const int32_t steps = (length + kDepth - 1) / kDepth;
  // Half of the tables from a depth on, by one half of the threads each.
  auto tabulate = [&](int32_t first) {
    const int32_t depth = first + thread % kMmaTableHalf;
    if (thread < kMmaTableHalf) {
      tables.depth_a.at(depth) = depth < length ? gemm.a_depth(begin + depth) : outside();
    } else {
      tables.depth_b.at(depth) = depth < length ? gemm.b_depth(begin + depth) : outside();
    }
  };
  MmaLoader<T, AccessA, false, Config::kM, kDepth> load_a(buffers.a + gemm.a_base(), tables.gemm.rows_a,
                                                          gemm.extent_h(), gemm.extent_w());
  MmaLoader<T, AccessB, true, Config::kN, kDepth> load_b(buffers.b + gemm.b_base(), tables.gemm.rows_b, 0, 0);
  constexpr uint32_t kBytesA = Config::kM * kDepth * sizeof(T);
  // Beyond the last step as well, of zeros: no branch then keeps copies and products apart.
  auto start = [&](int32_t step, int slot, int part) {
    const uint32_t stage = ring + slot * kStageBytes;
    load_a.template start<Config::kParts>(stage, &tables.depth_a.at(step * kDepth), part);
    load_b.template start<Config::kParts>(stage + kBytesA, &tables.depth_b.at(step * kDepth), part);
    if (part == Config::kParts - 1) ptx::async_copy_commit();
  };

  // A step with which one half of the tables begins is when the other half, which no thread needs any more, is filled.
  static_assert(kMmaTableHalf % kDepth == 0);
  auto begins_half = [](int32_t step) { return static_cast<uint32_t>(step) % (kMmaTableHalf / kDepth) == 0; };
  auto tabulate_after = [&](int32_t step) { tabulate(step * kDepth + kMmaTableHalf); };

  MmaSumsOfWarp sums = {};
  tabulate(0);
#pragma unroll 1
  for (int step = 0; step < stages - 1; ++step) {
    if (begins_half(step)) {
      __syncthreads();
      tabulate_after(step);
    }
#pragma unroll
    for (int part = 0; part < Config::kParts; ++part) start(step, step, part);
  }
  int slot = 0, free_slot = stages - 1;
#pragma unroll 1
  for (int32_t step = 0; step < steps; ++step) {
    wait_for_copies(stages - 2);
    __syncthreads();
    const int32_t next = step + stages - 1;
    if (begins_half(next)) tabulate_after(next);
    const uint32_t stage = ring + slot * kStageBytes;
    multiply_stage<T, Config, kRowsA, kRowsB>(stage, stage + kBytesA, sums,
                                              [&](int part) { start(next, free_slot, part); });
    free_slot = slot;
    slot = slot + 1 == stages ? 0 : slot + 1;
  }

  ptx::async_copy_wait<0>();
  const bool partial = buffers.partial != nullptr;
  const OutputRun run = !partial ? buffers.run : gemm.extent_m() % 4 == 0 ? OutputRun::kAlongM : OutputRun::kNone;
  float* parts = buffers.partial + gemm.partial_base();
  T* out = buffers.out + gemm.out_base();
  store_mma_tile<Config>(sums, ring, tables.gemm.output, partial ? parts : out, run);
#endif
}

}  // namespace fastconv
