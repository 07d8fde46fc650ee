// What the launchers of this family share.
#pragma once

#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/launch/stream.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

enum class PatchMove : int8_t { kGatherRows, kGatherPlanes, kScatterRows };
// Moves patches to the workspace or from there.
void launch_move(PatchMove move, const Plan& plan, const Patches& patches, DType dtype, void* image, void* workspace,
                 Stream& stream);

}  // namespace fastconv
