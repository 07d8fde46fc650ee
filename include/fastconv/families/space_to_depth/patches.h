// An image whose patches, blocks of a few rows and columns, become pixels: the patch's elements are the pixel's
// channels. Plain C++ as well as CUDA: the tests run it against brute force.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// How the patches lie in the workspace.
enum class PatchLayout : int8_t {
  kRows,    // a patch's elements side by side: channels_last
  kPlanes,  // an image's patches side by side, for each of their elements: NCHW
};

struct PatchesConfig {
  PatchLayout layout;
};

inline constexpr int kPatchThreads = 256;
// What a warp moves at a time: so many chunks of `vector` elements, of so many patches. In kRows lanes lie along both,
// so that runs of 32 bytes or more are read and written even where a patch's rows are short; in kPlanes along patches.
inline constexpr int kPatchChunks = 8, kPatchPixels = 32, kPatchSteps = kPatchChunks * kPatchPixels / 32;

// One index of an element in its patch. Of a patch that is larger than the filter, some meet no tap.
struct PatchLevel {
  int64_t stride;       // of the image
  int32_t row, column;  // that it counts
  int64_t patch;        // stride of taps in the workspace's patches
  FastDivmod step;      // from a tap to the next
  int32_t taps;
};

// What a chunk of a patch, and the patch that it is of, add to its place.
struct PatchPart {
  int64_t image, patches;  // elements from the start of either
  int32_t row, column;     // of the image
  bool met = true;         // by a tap
};

// Beyond the last whole patch of an image there is only the image, and outside the image nothing.
struct PatchPlace {
  int64_t image, patches;
  bool in_image, in_patches;
};

struct Patches {
  int64_t image_n, image_p, image_q;                  // strides from image to image and from patch to patch
  int64_t patches_n, patches_pixel, patches_channel;  // strides in the workspace
  int64_t image_first;                                // where the first patch begins, outside the image or at 0
  PatchLevel levels[3];                               // outermost first
  FastDivmod middle, inner;                           // sizes of the last two
  FastDivmod rows, columns;                           // of patches that are moved
  int32_t q;                                          // columns of whole patches
  int32_t h, w, whole_h, whole_w;                     // of the image, and before which its whole patches begin
  int32_t r, s;
  int32_t first_h, first_w;  // of the first patch; not above 0
  int32_t vector;            // elements side by side on both sides, moved at once
  int32_t chunks, pixels;    // of a patch; patches of all images
  FastDivmod chunk_blocks;
  int32_t units;  // of a warp

  FASTCONV_HOST_DEVICE PatchPart of_chunk(int32_t chunk) const {
    if (chunk >= chunks) return nowhere();
    int32_t rest, i[3];
    inner.divmod(chunk * vector, rest, i[2]);
    middle.divmod(rest, i[0], i[1]);
    PatchPart part{0, 0, 0, 0};
    for (int k = 0; k < 3; ++k) {
      const PatchLevel& level = levels[k];
      int32_t tap, beside;
      level.step.divmod(i[k], tap, beside);
      part.met = part.met && beside == 0 && tap < level.taps;
      part.patches += tap * level.patch;
      part.image += i[k] * level.stride;
      part.row += i[k] * level.row, part.column += i[k] * level.column;
    }
    part.patches *= patches_channel;
    return part;
  }
  FASTCONV_HOST_DEVICE PatchPart of_pixel(int32_t pixel) const {
    if (pixel >= pixels) return nowhere();
    int32_t rest, n, row, column;
    columns.divmod(pixel, rest, column);
    rows.divmod(rest, n, row);
    return {image_first + n * image_n + row * image_p + column * image_q,
            n * patches_n + (int64_t{row} * q + column) * patches_pixel, first_h + row * r, first_w + column * s};
  }
  FASTCONV_HOST_DEVICE PatchPlace place(const PatchPart& chunk, const PatchPart& pixel) const {
    const int32_t row = chunk.row + pixel.row, column = chunk.column + pixel.column;
    const bool in_image = row >= 0 && row < h && column >= 0 && column < w;
    return {chunk.image + pixel.image, chunk.patches + pixel.patches, in_image,
            in_image && chunk.met && pixel.row < whole_h && pixel.column < whole_w};
  }

 private:
  static FASTCONV_HOST_DEVICE PatchPart nowhere() { return {0, 0, kMaxExtent, kMaxExtent}; }
};

// What a lane moves of a warp's unit, step by step.
template <PatchLayout kLayout>
class PatchLane {
 public:
  FASTCONV_HOST_DEVICE PatchLane(const Patches& patches, int32_t unit, int lane) : patches_(patches) {
    int32_t chunk_block, pixel_block;
    patches.chunk_blocks.divmod(unit, pixel_block, chunk_block);
    first_chunk_ = chunk_block * kPatchChunks + (kRows ? lane % kPatchChunks : 0);
    first_pixel_ = pixel_block * kPatchPixels + (kRows ? lane / kPatchChunks : lane);
    same_ = kRows ? patches.of_chunk(first_chunk_) : patches.of_pixel(first_pixel_);
  }
  FASTCONV_HOST_DEVICE PatchPlace place(int step) const {
    return kRows ? patches_.place(same_, patches_.of_pixel(first_pixel_ + step * (32 / kPatchChunks)))
                 : patches_.place(patches_.of_chunk(first_chunk_ + step), same_);
  }

 private:
  static constexpr bool kRows = kLayout == PatchLayout::kRows;

  const Patches& patches_;
  int32_t first_chunk_, first_pixel_;
  PatchPart same_;  // that all steps share
};

}  // namespace fastconv
