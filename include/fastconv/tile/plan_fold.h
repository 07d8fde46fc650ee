// Whether and how a convolution is folded, see tile/fold.h.
#pragma once

#include "fastconv/planner/sides.h"
#include "fastconv/tile/fold.h"

namespace fastconv {

const char* fold_why_not(const ConvProblem& problem);  // null if it can be
Fold make_fold(const ConvProblem& problem);

// What a folded convolution is along one dimension.
int64_t folded_size(const FoldedAxis& axis);
int64_t folded_taps(const FoldedAxis& axis);
int64_t folded_padding(const FoldedAxis& axis, int64_t padding);
// `in` with the extents of the folded input; strides remain those of pixels and channels in memory.
Side folded(const Side& in, const Fold& fold);

// In the workspace, as rows of pixels.
FoldedRows make_folded_rows(const ConvProblem& problem);  // without addresses
Side folded_rows(const FoldedRows& rows, int64_t images);

}  // namespace fastconv
