// From a compiled kernel to the function that launches it.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"
#include "fastconv/launch/stream.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

using Launcher = void (*)(const Plan&, const ConvProblem&, const ConvBuffers&, Stream&);

// The launcher of a family's line, null where the line is not compiled for the element type T. Each choice of
// template arguments is instantiated in a file of its own under src/instances, so that they compile in parallel.
template <Pass kPass, typename T>
Launcher direct_launcher(int line);
template <Pass kPass, typename T>
Launcher im2col_launcher(int line);
template <DepthwiseKind kKind, typename T>
Launcher depthwise_launcher(int line);
template <typename T>
Launcher depthwise_any_launcher(int line);
template <typename T>
Launcher depthwise_banded_launcher(int line);
template <typename T>
Launcher depthwise_cross_launcher(int line);
template <typename T>
Launcher depthwise_diagonal_launcher(int line);
template <typename T>
Launcher depthwise_pairs_launcher(int line);
template <HaloStaging kStaging, FilterTile kFilter, OperandForm kOperands, typename T>
Launcher halo_launcher(int line);
template <WgradStaging kStaging, OperandForm kOperands, typename T>
Launcher wgrad_launcher(int line);
template <typename T>
Launcher grouped_launcher(int line);
template <typename T>
Launcher grouped_planes_launcher(int line);
template <typename T>
Launcher mma_launcher(int line);
template <typename T>
Launcher quads_launcher(int line);
template <typename T>
Launcher ready_quads_launcher(int line);
template <typename T>
Launcher quads_wgrad_launcher(int line);
template <typename T>
Launcher embed_launcher(int line);
Launcher stem_launcher(int line);

// What run_cuda() does, for a plan that may be a part of another.
void run_plan(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream);

// Whatever the line and the element type.
void launch_patches(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream);
void launch_subpixel(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream);

// Of what a scaled kernel multiplies, in the first kRangeBytes of the workspace; see planner/scaled.h.
const OperandRange* measure_operands(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                                     Stream& stream);

}  // namespace fastconv
