// What the parts of the pybind11 module share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fastconv/core/problem.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/fold.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"
#include "fastconv/tile/tensor_map_spec.h"
#include "products.h"

namespace fastconv {

namespace py = pybind11;
using namespace pybind11::literals;

// What each part adds to the module.
void bind_planner(py::module_& m);
void bind_tile(py::module_& m);
void bind_depthwise(py::module_& m);
void bind_few_channels(py::module_& m);
void bind_grouped(py::module_& m);
void bind_halo(py::module_& m);
void bind_pointwise(py::module_& m);
void bind_implicit_gemm(py::module_& m);
void bind_space_to_depth(py::module_& m);
void bind_wgrad(py::module_& m);

// Of a plan of the family: whether TMA can do all that the plan has it do.
void check_halo_copies(const Plan& plan, const ConvProblem& problem);
void check_wgrad_copies(const Plan& plan, const ConvProblem& problem);

using Quad = std::tuple<int64_t, int64_t, int64_t, int64_t>;

inline Quad to_quad(const Strides& s) { return {s.n, s.c, s.h, s.w}; }
inline Strides from_quad(const Quad& quad) { return std::make_from_tuple<Strides>(quad); }

// Throws why there is none.
inline Plan plan_of(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) {
  Offer offered = offer(kernel, problem, device);
  if (offered.why_not != nullptr) throw py::value_error(offered.why_not);
  return std::move(offered.plan);
}

// A function of a problem's plan; ValueError with the kernel's reason if it has none.
template <typename R>
inline auto unless_refused(R (*of_plan)(const ConvProblem&, const KernelEntry&, const DeviceSpec&)) {
  return [of_plan](const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
    if (const char* reason = offer(kernel, problem, device).why_not) throw py::value_error(reason);
    return of_plan(problem, kernel, device);
  };
}

// What a block of the kernels for narrow groups stages: [plane][pixel][channel], elements of the source, kOutside where
// there is none.
inline constexpr int64_t kOutside = -1, kNotStaged = -2;

// The workspace's rows of pixels as elements of the tensor, kZero or kNothing, by the same steps as the kernels; beside
// it what they should be. With `to_planes` the tensor as elements of the rows.
inline constexpr int64_t kZero = -1, kNothing = -2;

inline void once(int64_t& to, int64_t value) {
  if (to != kNothing) throw py::index_error("written twice");
  to = value;
}

// Turns that the banks of shared memory take for what a warp accesses at once, `bytes` a lane: 128 bytes together.
inline int bank_turns(const std::vector<int>& addresses, int bytes) {
  const int lanes = std::min(32, 128 / bytes);
  size_t turns = 0;
  for (size_t first = 0; first < addresses.size(); first += lanes) {
    std::array<std::set<int>, 32> words;
    for (size_t i = first; i < first + lanes; ++i) {
      for (int byte = 0; byte < bytes; byte += 2) {
        const int word = (addresses.at(i) + byte) / 4;
        words[word % 32].insert(word);
      }
    }
    for (const std::set<int>& bank : words) turns = std::max(turns, bank.size());
  }
  return static_cast<int>(turns);
}

// Offsets in the workspace's rows of pixels as offsets in the tensor that they are read from, or written to.
inline int64_t in_planes(const Reorder& order, int64_t offset) {
  if (order.units == 0) return offset;
  const int64_t pixel = offset / order.row;
  return pixel / order.pixels.divisor * order.plane_n + offset % order.row * order.plane_c +
         pixel % order.pixels.divisor;
}

// Pixels of a folded input by their number, since they may begin outside the image.
struct FoldedPixel {
  int64_t n;
  int32_t h, w;
};
inline FoldedPixel folded_pixel(int64_t number, int32_t width, int32_t height) {
  const int64_t row = number / width;
  return {row / height, static_cast<int32_t>(row % height), static_cast<int32_t>(number % width)};
}

// Of channels from `begin` up to `end` of a pixel; filter(channel) is an element of the filter or -1. Channels that are
// read as a pair must be one.
template <typename F>
void folded_products(const ConvProblem& p, const Fold& fold, FoldedPixel pixel, int32_t begin, int32_t end, F filter,
                     int64_t target, Products& products) {
  const int32_t h0 = fold.h.pixel(pixel.h, 0), w0 = fold.w.pixel(pixel.w, 0);
  const int64_t source = pixel.n * p.x_strides.n + h0 * p.x_strides.h + w0 * p.x_strides.w;
  auto inside = [&](const FoldedChannel& c) { return fold.h.has_pixel(h0 + c.h) && fold.w.has_pixel(w0 + c.w); };
  for (int32_t i = begin; i < end; ++i) {
    const FoldedChannel &channel = fold.channel[i], &first = fold.channel[i & ~1];
    if (fold.pairs && (inside(channel) != inside(first) || (source + first.offset) % 2 != 0 ||
                       channel.offset != first.offset + i % 2)) {
      throw py::index_error("no pair");
    }
    const int64_t at = filter(i);
    if (inside(channel) && at >= 0) products.emplace_back(source + channel.offset, at, target);
  }
}

// Element of a float32 tensor whose part the first group's rows hold at this offset, 16-bit elements; see split.h.
inline int64_t split_element(const Side& side, int64_t groups, Operand operand, int32_t parts, int32_t part,
                             int64_t offset) {
  const int64_t group = split_channels(side.c, operand), row = parts * groups * group;
  const int64_t pixel = offset / row, c = offset % row - part * groups * group;
  if (c < 0 || c >= side.c) throw py::index_error("another part, or group");
  return pixel / (side.h * side.w) * side.stride.n + pixel / side.w % side.h * side.stride.h +
         pixel % side.w * side.stride.w + c * side.stride.c;
}

// What a box of a tensor map holds at a coordinate: the element's offset in the tensor, or kZero.
inline int64_t mapped(const TensorMapSpec& map, const std::array<int64_t, 5>& at, int64_t element_bytes = 2) {
  int64_t offset = map.offset + at[0];
  for (int i = 0; i < 5; ++i) {
    if (at[i] < 0 || at[i] >= static_cast<int64_t>(map.size[i])) return kZero;
    if (i > 0) offset += at[i] * static_cast<int64_t>(map.stride[i - 1]) / element_bytes;
  }
  return offset;
}
// What cuTensorMapEncodeTiled takes of elements of so many bytes, and whether a copy may begin at the column.
inline void check_copy(const TensorMapSpec& map, int64_t bytes, int64_t column) {
  const int64_t row_bytes = map.box[0] * bytes;
  bool legal = map.offset >= 0 && map.offset * bytes % 16 == 0 && column * bytes % 16 == 0;
  for (const uint64_t size : map.size) legal = legal && size >= 1 && size <= uint64_t{1} << 32;
  for (const uint64_t stride : map.stride) legal = legal && stride % 16 == 0 && stride < uint64_t{1} << 40;
  for (const uint32_t box : map.box) legal = legal && box >= 1 && box <= 256;
  for (const uint32_t step : map.step) legal = legal && step >= 1 && step <= 8;
  legal = legal && map.step[0] == 1 && row_bytes % 16 == 0;
  if (map.swizzle_bytes != 0) legal = legal && row_bytes <= map.swizzle_bytes;
  if (!legal) throw py::index_error("no legal copy");
}

// Of the accesses that the lanes of a warp make together, of so many values each.
inline int bank_conflicts(const std::array<std::vector<int32_t>, 32>& places, int values) {
  int most = 1;
  for (size_t i = 0; i < places[0].size(); ++i) {
    for (int first = 0; first < 32; first += 32 / values) {  // 128 bytes are read or written at once
      std::array<int, 32> count{};
      for (int lane = first; lane < first + 32 / values; ++lane) {
        if (i < places[lane].size()) most = std::max(most, ++count[places[lane][i] / values % (32 / values)]);
      }
    }
  }
  return most;
}

}  // namespace fastconv
