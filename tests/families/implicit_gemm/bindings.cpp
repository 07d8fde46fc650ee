// What tiled kernels multiply, and where their operands lie.
#include "fastconv/families/implicit_gemm/mma_config.h"
#include "fastconv/tile/conv_coords.cuh"
#include "native.h"

namespace fastconv {
namespace {

Products direct_products(const ConvProblem& problem, bool channels_inner) {
  const ConvMap map = make_conv_map(problem, channels_inner);
  Products products;
  for (int32_t i = 0; i < map.h.phases * map.w.phases; ++i) {
    const ConvPhase phase = map.phase(i / map.w.phases, i % map.w.phases);
    const ConvView view{map, phase};
    for (int64_t pixel = 0; pixel < map.pixels; ++pixel) {
      const Pixel at = view.pixel(view.origin(pixel), 0);
      const int64_t target = view.target_pixel(at);
      if (target < 0) continue;
      const Coord base = view.source_pixel(at);
      for (int32_t tap = 0; tap < view.taps(); ++tap) {
        const Coord step = view.source_tap(tap);
        const int32_t row = base.h + step.h, column = base.w + step.w;
        if (row < 0 || row >= map.h.source_extent || column < 0 || column >= map.w.source_extent) continue;
        products.emplace_back(base.offset + step.offset, view.filter_tap(tap), target);
      }
    }
  }
  return products;
}

Products im2col_products(const ConvProblem& problem) {
  const Columns columns = make_columns(problem);
  Products products;
  for (int64_t pixel = 0; pixel < columns.pixels(); ++pixel) {
    for (int64_t tap = 0; tap < columns.taps(); ++tap) {
      const int64_t source = columns.source_element(pixel, tap);
      if (source >= 0) products.emplace_back(source, columns.filter_tap(tap), columns.target_pixel(pixel));
    }
  }
  return products;
}

int mma_chunk(bool along_rows, bool is_b, int line, int chunk, int length) {
  if (along_rows && is_b) return MmaLayout<true, true>::chunk(line, chunk, length);
  if (along_rows) return MmaLayout<true, false>::chunk(line, chunk, length);
  if (is_b) return MmaLayout<false, true>::chunk(line, chunk, length);
  return MmaLayout<false, false>::chunk(line, chunk, length);
}

}  // namespace

void bind_implicit_gemm(py::module_& m) {
  m.def(
      "products",
      [](const ConvProblem& problem, const std::string& method) {
        if (method == "im2col") return im2col_products(problem);
        if (method == "direct" || method == "direct_channels_inner") {
          return direct_products(problem, method == "direct_channels_inner");
        }
        throw py::value_error("unknown method: " + method);
      },
      "problem"_a, "method"_a);
  m.def("mma_chunk", &mma_chunk, "along_rows"_a, "is_b"_a, "line"_a, "chunk"_a, "length"_a);
}

}  // namespace fastconv
