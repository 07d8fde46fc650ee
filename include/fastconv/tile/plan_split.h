// Tensors and filters that a kernel splits into operands in its workspace; see tile/split.h.
#pragma once

#include <cstdint>

#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/split.h"

namespace fastconv {

// Of bf16, that a precision needs: bf16x3 or ieee, or what is more exact than TF32.
int split_parts(Precision precision);
// A group's channels in the workspace, filled up with zeros to whole sectors: TMA is slow to write zeros of
// its own.
int64_t split_channels(int64_t channels, Operand operand);
// Whatever its strides.
bool splittable(const Side& side, int64_t groups);
// Without addresses; `element`: bytes of a value.
Split make_split(const Side& side, int64_t groups, Operand operand, int parts, int element = 4);
// What the workspace then holds, as a tensor of its first part: strides in elements of the operand. A pixel has groups
// * parts times a group's channels, filled up to whole sectors.
Side split_side(const Side& side, int64_t groups, Operand operand, int parts);
int64_t split_bytes(const Side& side, int64_t groups, Operand operand, int parts);

// The filter by its problem's pass: rows are output channels of the products, fprop's or dgrad's, with the other
// channels in each of their taps; [part][group][row][tap][channel].
bool filter_splittable(const ConvProblem& problem);
Split make_filter_split(const ConvProblem& problem, Operand operand, int parts);  // without addresses
Strides filter_split_strides(const ConvProblem& problem, Operand operand);        // in elements of the operand
int64_t filter_split_bytes(const ConvProblem& problem, Operand operand, int parts);

// Of a tensor, and of the wait for all blocks; see reorder_us.
double split_us(const Side& side, int64_t groups, Operand operand, int parts, double share, const DeviceSpec& device);

}  // namespace fastconv
