// What the families have in common that move patches between an image and the workspace, where another kernel computes
// with them.
#pragma once

#include <array>
#include <cstdint>

#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/sides.h"

namespace fastconv {

inline constexpr int64_t kPatchVectorBytes = 16, kPatchWorkspaceAlign = 256;

// One index of an element in its patch.
struct PatchIndex {
  int64_t size;
  int64_t order;  // the larger, the further out
  int64_t image;  // stride
  bool is_row, is_column;
  int64_t taps = size, step = 1;  // of the filter, from one to the next

  bool dense() const { return taps == size; }
};
using PatchIndices = std::array<PatchIndex, 3>;

// Outermost first. Those of one element come first: they are nowhere.
PatchIndices in_order(PatchIndices indices);

struct PatchGrid {
  Side image;
  int64_t element_bytes;
  PatchIndices indices;  // in order
  Pair size;             // of a patch
  Pair before;           // rows and columns of the first patch that lie before the image
  Pair moved, whole;     // patches each way; those that are whole have a place in the workspace
  Strides to;            // of the workspace, whose pixels and channels patches are
};

Patches make_patches(const PatchGrid& grid);

// Elements from one pixel or plane of the workspace to the next: TMA wants multiples of 16 bytes.
int64_t patch_pitch(int64_t elements, int64_t element_bytes);
// Of pixels whose channels lie side by side.
Strides patch_rows(Pair pixels, int64_t pitch);

// Whether 32 bits count patches, their elements, what warps move, and rows and columns.
bool patches_fit_int32(const PatchGrid& grid);

// A kernel that moves them.
double move_us(const Patches& patches, int64_t element_bytes, const DeviceSpec& device);

}  // namespace fastconv
