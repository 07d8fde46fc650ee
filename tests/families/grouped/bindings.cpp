// What kernels of narrow groups multiply.
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/walk.cuh"
#include "native.h"

namespace fastconv {
namespace {

std::vector<int64_t> grouped_rows(const GroupedWalk& params, const GroupedRows& rows, const GroupedTile& tile,
                                  int32_t first_row, int32_t first_column) {
  const int32_t pixels = rows.plane_bytes / kGroupedRowBytes, planes = tile.groups * rows.chunks;
  const int32_t all = rows.tile_h * rows.tile_w, vector = rows.pairs ? 2 : 1;
  std::vector<int64_t> staged(static_cast<size_t>(planes * pixels * params.chunk), kNotStaged);
  auto stage = [&](int32_t plane, int32_t row, int32_t column) {
    const int32_t h = first_row + row, w = first_column + column, chunk = plane % rows.chunks;
    const bool exists = h >= 0 && h < rows.extent_h && w >= 0 && w < rows.extent_w;
    for (int32_t c = 0; c < params.chunk; ++c) {
      const int64_t channel = chunk * params.chunk + c;
      int64_t& to = staged.at((int64_t{plane} * pixels + row * rows.tile_w + column) * params.chunk + c);
      if (to != kNotStaged) throw py::index_error("staged twice");
      to = exists && channel < rows.channels
               ? tile.image * rows.stride.n +
                     ((tile.first_group + plane / rows.chunks) * rows.channels + channel) * rows.stride.c +
                     h * rows.stride.h + w * rows.stride.w
               : kOutside;
    }
  };
  if (rows.copy_bytes > 0) {
    // As threads do: each copies some pixels of a plane.
    const int32_t lanes = 1 << rows.lanes_log2, step = kGroupedThreads / lanes;
    for (int32_t plane = 0; plane < planes; ++plane) {
      for (int32_t first = 0; first < step; ++first) {
        int32_t row, column;
        rows.copied.find(first, row, column);
        for (int32_t pixel = first; pixel < all; pixel += step) {
          stage(plane, row, column);
          rows.copied.advance(row, column);
        }
      }
    }
    return staged;
  }
  for (int32_t i = 0; i < rows.units + 2 * kGroupedThreads; ++i) {
    const GroupedUnit unit(rows, i, first_column);
    if (unit.plane >= planes || unit.row >= rows.tile_h) continue;
    if (i >= rows.units) throw py::index_error("a unit too many");
    if (rows.pairs && (first_column + unit.column) % 2 != 0) throw py::index_error("a pair that is not aligned");
    for (int32_t column = unit.column; column < unit.column + vector; ++column) {
      if (column >= 0 && column < rows.tile_w) stage(unit.plane, unit.row, column);
    }
  }
  return staged;
}

std::vector<std::pair<int32_t, int32_t>> grouped_pixels(int32_t width, int32_t step, int32_t first, int32_t count) {
  const GroupedPixels pixels(width, step);
  std::vector<std::pair<int32_t, int32_t>> places;
  int32_t row, column;
  pixels.find(first, row, column);
  for (int32_t i = 0; i < count; ++i) {
    places.emplace_back(row, column);
    pixels.advance(row, column);
  }
  return places;
}

// By its own tiling, or one that is given: pixels, groups, sets stored together. Offsets are those of the first filter
// of group 0 if `group` is, else as far from them as its tensors are.
Products grouped_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                          int32_t group, std::optional<std::array<int32_t, 4>> tiles) {
  const Plan plan = plan_of(kernel, problem, device);
  GroupedTiling tiling = plan.tiling.as<GroupedTiling>();
  if (tiles) tiling = {(*tiles)[0], (*tiles)[1], (*tiles)[2], (*tiles)[3]};
  const GroupedParams params = grouped_params(kernel.config.as<GroupedConfig>(), problem, tiling);
  const GroupedRows& rows = params.rows;
  const int32_t blocks =
      static_cast<int32_t>(problem.n) * params.h.phases * params.w.phases *
      static_cast<int32_t>(params.by_group_blocks.divisor * params.by_tiles_h.divisor * params.by_tiles_w.divisor);
  if (!tiles && blocks != plan.grid) throw py::index_error("not the plan's blocks");
  const int32_t size = static_cast<int32_t>(element_size(problem.dtype));
  const int32_t vector = params.store == GroupedStore::kPixels ? params.store_bytes / size : 1;
  Products products;
  for (int32_t block = 0; block < blocks; ++block) {
    const GroupedTile tile(params, block);
    if (tile.rows <= 0 || tile.columns <= 0) continue;
    const GroupedTargets targets(params, tile);
    const int32_t of_tile = group - tile.first_group;
    if (of_tile < 0 || of_tile >= tile.groups) continue;
    const std::vector<int64_t> staged = grouped_rows(params, rows, tile, tile.halo_h, tile.halo_w);
    const int64_t first = tile.first_target(params) - tile.first_group * params.filters * params.target.c;
    if (tile.reduction(params) * kernel.config.as<GroupedConfig>().filters * kGroupedRowBytes > params.set_bytes) {
      throw py::index_error("more taps than have room");
    }
    for (int32_t pixel = 0; pixel < params.tile_p * params.tile_q; ++pixel) {
      const int32_t piece = pixel % vector;
      int32_t row, column;
      params.stored.find(pixel - piece, row, column);
      if (!targets.exists(row, column)) continue;
      const int64_t target = targets.offset(params, row, column);
      if ((first + target) * size % params.store_bytes != 0 && vector > 1) throw py::index_error("not aligned");
      for (int32_t i = 0; i < tile.reduction(params); ++i) {
        const GroupedTap tap = tile.tap(params, i);
        params.named.find(pixel, row, column);
        const int32_t at =
            of_tile * rows.chunks * rows.plane_bytes + GroupedTile::row_of(params, row, column) + tap.row;
        for (int32_t c = 0; c < params.chunk; ++c) {
          const int64_t from = staged.at(at / kGroupedRowBytes * params.chunk + c);
          if (from < kOutside) throw py::index_error("not staged");
          if (c >= tap.channels && from != kOutside) throw py::index_error("a channel of the next group");
          if (from == kOutside) continue;
          products.emplace_back(from - group * rows.channels * rows.stride.c, tap.filter + c * params.filter.c,
                                first + target + piece);
        }
      }
    }
  }
  return products;
}

// As grouped_products(), of the weight gradient; given are pixels, groups and parts.
Products grouped_wgrad_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                                int32_t group, std::optional<std::array<int32_t, 4>> tiles) {
  const GroupedConfig& config = kernel.config.as<GroupedConfig>();
  const Plan plan = plan_of(kernel, problem, device);
  GroupedTiling tiling = plan.tiling.as<GroupedTiling>();
  int64_t parts = plan.split;
  if (tiles) {
    tiling.tile_p = (*tiles)[0], tiling.tile_q = (*tiles)[1];
    tiling.tile_g = std::min((*tiles)[2], tiling.tile_g), parts = (*tiles)[3];
  }
  const GroupedWgradParams params = grouped_wgrad_params(config, problem, tiling, parts);
  const auto jobs = static_cast<int32_t>(params.by_jobs.divisor);
  if (!tiles && jobs * parts != plan.grid) throw py::index_error("not the plan's blocks");
  const int32_t threads = config.unit_threads();
  Products products;
  std::set<std::pair<int64_t, int64_t>> elements;  // part, and of the group's dW
  for (int32_t block = 0; block < jobs * parts; ++block) {
    const GroupedJob job(params, block);
    // Of every thread's sums, those of the first filter: rows, channels and elements of dW.
    std::vector<std::tuple<int32_t, int32_t, int64_t>> sums;
    const GroupedTile first = job.pixels(params, 0);
    const int32_t of_job = group - first.first_group;
    int32_t index, rest;
    for (int32_t i = 0; i < params.job_quads * 4; ++i) {
      params.by_job_threads.divmod(i / 4, index, rest);
      const GroupedWgradUnit unit(params, config, job, rest / threads);
      const GroupedSum sum(config, rest % threads, index, i % 4);
      const int64_t element = sum.element(params, first, unit);
      if (element < 0 || unit.group != of_job) continue;
      if (!elements.emplace(job.part, element - of_job * params.filter_group).second) {
        throw py::index_error("two sums of an element");
      }
      if (unit.first_filter + sum.filter == 0) {
        sums.emplace_back(unit.first_row + sum.row, sum.channel, element - of_job * params.filter_group);
      }
    }
    if (sums.empty()) continue;
    for (int32_t at = job.tile; at < job.end; ++at) {
      const GroupedTile tile = job.pixels(params, at);
      const std::vector<int64_t> x = grouped_rows(params, params.rows, tile, tile.halo_h, tile.halo_w);
      const std::vector<int64_t> y = grouped_rows(params, params.y_rows, tile, tile.p, tile.q);
      const int32_t step = config.step_pixels();
      for (int32_t begin = 0; begin < params.slices * step; begin += step) {
        for (int32_t pixels = begin; pixels < tile.rows * params.tile_q; pixels += params.slices * step) {
          for (int32_t pixel = pixels; pixel < pixels + step; ++pixel) {
            const GroupedWgradPixel place(params, tile, pixel);
            if (pixel >= tile.rows * params.tile_q) continue;
            const int32_t y_row = of_job * params.y_rows.chunks * params.y_rows.plane_bytes / kGroupedRowBytes + pixel;
            if (place.exists == (y.at(int64_t{y_row} * params.chunk) == kOutside)) throw py::index_error("not zeros");
            if (!place.exists) continue;
            const int64_t gradient =
                y.at(int64_t{y_row} * params.chunk) - group * params.filters * params.y_rows.stride.c;
            for (const auto& [row, channel, element] : sums) {
              const int32_t bytes = of_job * params.rows.chunks * params.rows.plane_bytes + place.row;
              const int32_t x_row = (bytes + tile.tap(params, row).row) / kGroupedRowBytes;
              const int64_t from = x.at(int64_t{x_row} * params.chunk + channel);
              if (from < kOutside) throw py::index_error("not staged");
              if (from == kOutside) continue;
              products.emplace_back(from - group * params.rows.channels * params.rows.stride.c, element, gradient);
            }
          }
        }
      }
    }
  }
  const int64_t all = problem.k_per_group() * problem.c_per_group() * problem.r * problem.s;
  if (static_cast<int64_t>(elements.size()) != parts * all) throw py::index_error("an element without a sum");
  return products;
}

// The most pixels that one sum of a thread, or of a warp, adds up before others are added to it.
int64_t grouped_wgrad_chain(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const GroupedConfig& config = kernel.config.as<GroupedConfig>();
  const GroupedWgradParams params = grouped_wgrad_params(config, problem, plan.tiling.as<GroupedTiling>(), plan.split);
  const int32_t step = config.step_pixels();
  int64_t chain = 0;
  for (int32_t pixel = 0; pixel < params.tile_p * params.tile_q; pixel += params.slices * step) chain += step;
  return params.part_tiles * chain;
}

}  // namespace

void bind_grouped(py::module_& m) {
  m.def("grouped_pixels", &grouped_pixels, "width"_a, "step"_a, "first"_a, "count"_a);
  m.def("grouped_products", &grouped_products, "problem"_a, "kernel"_a, "device"_a, "group"_a = 0,
        "tiling"_a = std::nullopt);
  m.def("grouped_wgrad_chain", unless_refused(grouped_wgrad_chain), "problem"_a, "kernel"_a, "device"_a);
  m.def("grouped_wgrad_products", &grouped_wgrad_products, "problem"_a, "kernel"_a, "device"_a, "group"_a = 0,
        "tiling"_a = std::nullopt);
}

}  // namespace fastconv
