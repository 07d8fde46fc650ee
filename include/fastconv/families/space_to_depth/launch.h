// What the launchers of this family share.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"
#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/launch/stream.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

enum class PatchMove : int8_t { kGatherRows, kGatherPlanes, kScatterRows };
// Moves patches to the workspace or from there.
void launch_move(PatchMove move, const Plan& plan, const Patches& patches, DType dtype, void* image, void* workspace,
                 Stream& stream);

void launch_patches(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream);
void launch_subpixel(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream);

}  // namespace fastconv
