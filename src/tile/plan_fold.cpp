#include "fastconv/tile/plan_fold.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "fastconv/core/integers.h"

namespace fastconv {
namespace {

FoldedAxis fold_axis(int64_t size, int64_t taps, int64_t padding, int64_t stride) {
  // Folded pixels that begin with the image are aligned as it is, and whole to its end more often; but not at the price
  // of a tap.
  int64_t lead = (stride - padding % stride) % stride;
  if (ceil_div(taps + lead, stride) > ceil_div(taps, stride)) lead = 0;
  const int64_t begin = -((padding + lead) % stride);
  return {static_cast<int32_t>(stride), static_cast<int32_t>(size), static_cast<int32_t>(taps),
          static_cast<int32_t>(begin), static_cast<int32_t>(lead)};
}

// Elements that staging may count from an image's first one, padding included. In floating point: products of what
// nobody has checked yet can be anything.
double span(const ConvProblem& p) {
  auto times = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const Strides& x = p.x_strides;
  return times(p.c, x.c) + times(p.h + 2 * (p.padding.h + p.stride.h), x.h) +
         times(p.w + 2 * (p.padding.w + p.stride.w), x.w);
}

double folded_channels(const ConvProblem& p) {
  return static_cast<double>(p.c) * static_cast<double>(p.stride.h) * static_cast<double>(p.stride.w);
}

bool in_pairs(const ConvProblem& p, const Fold& fold) {
  auto even = [](int64_t size, int64_t stride) { return size == 1 || stride % 2 == 0; };
  const Strides& x = p.x_strides;
  if (p.x_align < 4 || fold.channels % 2 != 0 || !even(p.n, x.n) || fold.h.stride * x.h % 2 != 0 ||
      fold.w.stride * x.w % 2 != 0 || (fold.h.begin * x.h + fold.w.begin * x.w) % 2 != 0) {
    return false;
  }
  const bool even_columns = fold.w.stride % 2 == 0 && fold.w.begin % 2 == 0 && fold.w.size % 2 == 0;
  for (int i = 0; i < fold.channels; i += 2) {
    const FoldedChannel &a = fold.channel[i], &b = fold.channel[i + 1];
    const bool together = a.h == b.h && (a.w == b.w || (even_columns && a.w % 2 == 0 && b.w == a.w + 1));
    if (a.offset % 2 != 0 || b.offset != a.offset + 1 || !together) return false;
  }
  return true;
}

}  // namespace

const char* fold_why_not(const ConvProblem& p) {
  if (p.stride == kUnitStep || p.dilation != kUnitStep || p.groups != 1 || folded_channels(p) > kMaxFoldedChannels ||
      span(p) > std::numeric_limits<int32_t>::max()) {
    return "folds strides into up to 64 channels: needs a stride, no dilation, one group";
  }
  return nullptr;
}

Fold make_fold(const ConvProblem& p) {
  Fold fold{};
  fold.h = fold_axis(p.h, p.r, p.padding.h, p.stride.h), fold.w = fold_axis(p.w, p.s, p.padding.w, p.stride.w);
  for (int64_t h = 0; h < p.stride.h; ++h) {
    for (int64_t w = 0; w < p.stride.w; ++w) {
      for (int64_t c = 0; c < p.c; ++c) {
        const int64_t offset = h * p.x_strides.h + w * p.x_strides.w + c * p.x_strides.c;
        fold.channel[fold.channels++] = {static_cast<int32_t>(offset), static_cast<int8_t>(h), static_cast<int8_t>(w),
                                         static_cast<int16_t>(c)};
      }
    }
  }
  std::stable_sort(fold.channel, fold.channel + fold.channels,
                   [](const FoldedChannel& a, const FoldedChannel& b) { return a.offset < b.offset; });
  fold.pairs = in_pairs(p, fold);
  return fold;
}

int64_t folded_size(const FoldedAxis& axis) { return ceil_div(axis.size - axis.begin, axis.stride); }
int64_t folded_taps(const FoldedAxis& axis) { return ceil_div(axis.taps + axis.lead, axis.stride); }
int64_t folded_padding(const FoldedAxis& axis, int64_t padding) {
  return (padding + axis.lead + axis.begin) / axis.stride;
}

Side folded(const Side& in, const Fold& fold) {
  Side out = in;
  out.c = fold.channels, out.h = folded_size(fold.h), out.w = folded_size(fold.w);
  return out;
}

FoldedRows make_folded_rows(const ConvProblem& p) {
  FoldedRows out{};
  out.fold = make_fold(p);
  const int64_t h = folded_size(out.fold.h), w = folded_size(out.fold.w);
  out.in_n = p.x_strides.n;
  out.in_h = static_cast<int32_t>(p.x_strides.h), out.in_w = static_cast<int32_t>(p.x_strides.w);
  out.row = static_cast<int32_t>(round_up(out.fold.channels, 8));
  out.pixels = static_cast<int32_t>(p.n * h * w);
  out.height = FastDivmod(h), out.width = FastDivmod(w);
  return out;
}

Side folded_rows(const FoldedRows& rows, int64_t images) {
  const int64_t h = rows.height.divisor, w = rows.width.divisor, row = rows.row;
  return {images, rows.fold.channels, h, w, {row * w * h, 1, row * w, row}, 128};
}

}  // namespace fastconv
