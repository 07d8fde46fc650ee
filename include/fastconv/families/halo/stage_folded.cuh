// Producers of folded input, see fold.h: a thread gathers all staged channels of a folded pixel.
#pragma once

#include "fastconv/families/halo/walk.cuh"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/fold.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// All halos of the walk's tiles, by kWarps warps. A stage is given away when the next one's copies are under way.
template <int kChannels, int kWarps, typename Walk>
__device__ __forceinline__ void stage_folded_halos(const HaloParams& params, Walk walk, const Fold& fold, Ring& ring,
                                                   int warp, int lane) {
  uint32_t landing = 0;  // full barrier of the stage before
  auto give_away = [&] {
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0 && landing != 0) ptx::mbarrier_arrive(landing);
  };
  const int pixels = params.halo_rows * params.halo_pitch;
  for (; walk.more(); walk.next()) {
    const Tile tile(params, walk.index);
    for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
      const FoldedBox<kChannels> box{fold,
                                     static_cast<const uint16_t*>(params.in) + tile.n * params.in_n,
                                     static_cast<int32_t>(params.in_h),
                                     static_cast<int32_t>(params.in_w),
                                     fold.h.pixel(tile.p + group.dh, 0),
                                     fold.w.pixel(tile.q + group.dw, 0),
                                     c_block * kChannels};
      ring.wait_empty();
      for (int pixel = warp * 32 + lane; pixel < pixels; pixel += kWarps * 32) {
        int row, col;
        params.by_halo_pitch.divmod(pixel, row, col);
        if (fold.pairs) {
          box.copy_pairs(row, col, ring.stage(), pixel);
        } else {
          box.copy_elements(row, col, ring.stage(), pixel);
        }
      }
      ptx::async_copy_commit();
      ptx::async_copy_wait<1>();
      give_away();
      landing = ring.full();
      ring.next();
    });
  }
  ptx::async_copy_wait<0>();
  give_away();
}

}  // namespace fastconv
