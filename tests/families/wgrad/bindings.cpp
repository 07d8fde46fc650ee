// What the weight gradient multiplies, and what it waits for.
#include "fastconv/families/wgrad/plan.h"
#include "fastconv/families/wgrad/walk.cuh"
#include "native.h"

namespace fastconv {
namespace {

// Where a staged box has the pixel that lies so many bytes from its start; row -1: in the zeros behind the box.
struct BoxPixel {
  int32_t row, column;
};
BoxPixel box_pixel(const WgradOperand& from, bool pixel_rows, int64_t bytes, int64_t channels) {
  const int64_t image_row = from.pitch * channels * 2;
  const int64_t row = bytes / image_row, column = bytes % image_row / 2;
  return {row < from.box_rows ? static_cast<int32_t>(row) : -1,
          static_cast<int32_t>(pixel_rows ? column : column / channels)};
}

// Of every pixel of a reordered x, the last unit that writes channels of it.
std::vector<int32_t> last_units(const Reorder& order, int64_t images) {
  std::vector<int32_t> last(images * order.pixels.divisor, -1);
  for (int32_t index = 0; index < order.units; ++index) {
    const ReorderUnit unit(order, index);
    for (int32_t i = 0; i < unit.pixels; ++i) last.at(unit.row / order.row + i) = index;
  }
  return last;
}

// Tiles wait for all that is copied, even for what is multiplied by zero, and some not for the last unit.
void check_waits(const WgradParams& params, const std::vector<int32_t>& last) {
  const WgradOperand& x = params.x;
  bool early = false;
  for (uint32_t g = 0; g < params.tap_groups.divisor; ++g) {
    const WgradTapGroup& group = params.tap_group[g];
    for (int32_t t = 0; t < params.tiles; ++t) {
      const WgradTile tile(params, t);
      const int32_t waited = last_x_unit(params, group, tile);
      early = early || waited + 1 < params.x_order.units;
      for (int i = group.part_begin; i < group.part_end; ++i) {
        for (int32_t pixel = 0; pixel < x.box_rows * x.pitch; ++pixel) {
          int32_t image, row;
          x.box_h.divmod(pixel / x.pitch, image, row);
          const int64_t n = tile.n + image, h = tile.p * params.stride_h + params.part[i].dh + row * x.step_h;
          const int64_t w = tile.q * params.stride_w + params.part[i].dw + pixel % x.pitch * x.step_w;
          if (n >= x.n || h < 0 || h >= x.h || w < 0 || w >= x.w) continue;
          if (last.at((n * x.h + h) * x.w + w) > waited) throw py::index_error("not waited for");
        }
      }
    }
  }
  if (!early) throw py::index_error("all tiles wait for all units");
}

// Streaming goes on beside stages, and beside sums and the rows in which a block stores them.
void check_streaming(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const WgradParams params = wgrad_launch(plan, problem).params;
  if (params.x_order.rounds == 0) throw py::value_error("streams nothing");
  const int64_t rows = params.partials == 1 ? kWgradStoreRows * int64_t{params.store_pitch} : 0;
  const int64_t used =
      std::max(int64_t{params.stages} * params.stage_bytes, kernel.config.as<WgradConfig>().job_bytes() + rows);
  if (params.stream_offset % 1024 != 0) throw py::index_error("not aligned");
  if (used > params.stream_offset) throw py::index_error("over what products use");
  if (params.stream_offset + kReorderStreamBytes > params.data_bytes) throw py::index_error("over barriers");
  if (plan.smem_bytes > device.smem_optin_bytes) throw py::index_error("more than a block has");
  check_waits(params, last_units(params.x_order, params.x.n));
}

// A block of dy's rows as copy_wgrad_rows() and clear_wgrad_margins() leave it: for each pixel the offset of filter
// number `filter` of the block, or kZero. Rows of tile_q pixels.
std::vector<int64_t> copied_rows(const WgradLaunch& launch, const WgradTile& tile, int32_t block, int32_t filter) {
  const WgradParams& params = launch.params;
  std::vector<int64_t> pixels(params.tile_p * params.tile_q, kNothing);
  for_each_y_copy(params, tile, block, [&](int32_t at, int32_t row, int32_t first, int32_t place) {
    const TensorMapSpec& map = launch.y_map[at];
    check_copy(map, 2, tile.q);
    if (at >= launch.y_maps) throw py::index_error("another map");
    for (uint32_t i = 0; i < map.box[3]; ++i) {
      for (int32_t j = 0; j < params.tile_q; ++j) {
        int64_t& pixel = pixels.at((place + i) * params.tile_q + j);
        if (pixel != kNothing) throw py::index_error("copied twice");
        pixel = mapped(map, {tile.q + j, first + filter, 0, row + i, tile.n});
        if (tile.q + j < params.rows.shift[at]) {
          if (!params.rows.shifted || tile.q != 0) throw py::index_error("not cleared");
          pixel = kZero;
        }
      }
    }
  });
  return pixels;
}

// The block of 64 filters that holds this one, and its number there.
struct BlockFilter {
  int32_t block = -1, number = -1;

  BlockFilter(const WgradParams& params, int32_t filter) {
    for (int32_t i = 0; i < static_cast<int32_t>(params.k_jobs.divisor) * params.m_blocks * 64; ++i) {
      if (params.rows.filter(i / 64, i % 64) != filter) continue;
      if (block >= 0) throw py::index_error("a filter twice");
      block = i / 64, number = i % 64;
    }
    if (block < 0) throw py::index_error("no such filter");
  }
};

// WgradStaging::kFloats: dy of the 16 pixels of a step, as its consumers load them for filter number `filter` of a
// block; the element's offset, or kZero.
std::array<int64_t, 16> float_pixels(const WgradLaunch& launch, const WgradTile& tile, const WgradStep& step,
                                     int32_t block, int32_t filter) {
  const WgradParams& params = launch.params;
  const TensorMapSpec& map = launch.y_map[0];
  const WgradFloatsTile floats(params, tile);
  const int32_t pitch = params.floats.pitch;
  if (params.y_offset + params.m_blocks * params.y_block_bytes > params.stage_bytes) {
    throw py::index_error("beyond the stage");
  }
  std::array<std::vector<int32_t>, 32> pairs;
  for (int32_t lane = 0; lane < 32; ++lane) {
    for (int32_t i = 0; i < 8; i += 2) {
      pairs[lane].push_back(fragment_place(params.floats, lane, 0) + fragment_place(params.floats, 0, i));
    }
  }
  if (bank_conflicts(pairs, 2) > 1) throw py::index_error("bank conflicts");
  std::array<int64_t, 16> pixels;
  pixels.fill(kNothing);
  for (int32_t thread = 0; thread < 128; ++thread) {
    for (int32_t i = 0; i < 8; ++i) {
      if (fragment_filter(thread, i) != filter) continue;
      int64_t& pixel = pixels.at(fragment_pixel(thread, i));
      if (pixel != kNothing) throw py::index_error("loaded twice");
      pixel = kZero;
      if (fragment_pixel(thread, i) >= floats.pixels(step)) continue;
      const int32_t place =
          floats.place(step) + fragment_place(params.floats, thread, 0) + fragment_place(params.floats, 0, i);
      if (params.floats.copy_pixels == 0 && place >= 64 * pitch) throw py::index_error("not copied");
      const int32_t copy = place / (64 * pitch), row = place / pitch % 64, at = floats.copy(copy) + place % pitch;
      if (4 * place >= params.y_box_bytes || row != filter) throw py::index_error("not copied");
      if (floats.copy(copy) % 4 != 0) throw py::index_error("no legal copy");
      pixel = mapped(map, {at, block * 64 + row, 0, tile.n, 0}, 4);
    }
  }
  return pixels;
}

// As the sm_90a weight gradient forms them: both operands' pixels by their place in a stage. `product`: of parts.
Products wgrad_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device, int32_t filter,
                        int32_t product) {
  const WgradLaunch launch = wgrad_launch(plan_of(kernel, problem, device), problem);
  const WgradParams& params = launch.params;
  const WgradOperand &x = params.x, &y = params.y;
  const int64_t channels = kernel.config.as<WgradConfig>().channels;
  const bool x_pixels = x_has_pixel_rows(kernel.config.as<WgradConfig>().staging),
             y_pixels = y_has_pixel_rows(kernel.config.as<WgradConfig>().staging);
  // Rows of dy: of one filter, whose plane is where `target` counts from, and whose x lies further left.
  const bool rows = kernel.config.as<WgradConfig>().staging == WgradStaging::kTmaRows;
  const bool floats = kernel.config.as<WgradConfig>().staging == WgradStaging::kFloats,
             folds = params.x_fold.pixels > 0;
  const BlockFilter at(params, filter);
  const int32_t back = rows ? params.rows.shift[params.rows.filter_phase(at.block) << params.rows.row_log2] : 0;
  if (product >= split_products(params.parts)) throw py::index_error("no such product");
  const bool splits = params.x_split.parts > 0;
  const SplitProduct parts(params.parts, product);
  const Operand operand = operand_of(kernel.config.as<WgradConfig>().operands);
  std::vector<int64_t> copied;
  std::array<int64_t, 16> fragment{};
  Products products;
  auto target_of = [&](const WgradTile& tile, int64_t y_bytes) {
    if (rows) {
      const int64_t row = params.tile_q * 128, column = y_bytes % row / 2;
      if (column >= params.tile_q) throw py::index_error("another row");
      const int64_t target = copied.at(y_bytes / row * params.tile_q + column);
      if (target == kNothing) throw py::index_error("nothing staged");
      return target == kZero ? kZero : target - filter * y.c_stride;
    }
    const BoxPixel out = box_pixel(y, y_pixels, y_bytes, 64);
    if (out.row < 0) return kZero;
    int32_t y_image, y_row;
    y.box_h.divmod(out.row, y_image, y_row);
    const int64_t n = tile.n + y_image, h = tile.p + y_row, w = tile.q + out.column;
    if (n >= y.n || h >= y.h || w >= y.w) return kZero;
    if (splits) {
      const int64_t offset = mapped(launch.y_map[0], {0, parts.second * params.groups, w, h, n});
      return split_element(output_side(problem), problem.groups, operand, params.parts, parts.second, offset);
    }
    return in_planes(params.y_order, n * y.n_stride + h * y.h_stride + w * y.w_stride);
  };
  auto multiply = [&](const WgradTapGroup& group, int64_t first_c, const WgradTile& tile, const WgradStep& step,
                      int32_t i) {
    // A step is two groups of eight rows, or 16 pixels of one row.
    const int64_t x_bytes = step.x * 16 + (x_pixels ? 2 * i : i / 8 * params.x_group_pitch + i % 8 * channels * 2);
    const int64_t y_bytes = step.y * 16 + (y_pixels ? 2 * i : i / 8 * params.y_group_pitch + i % 8 * 128);
    const int32_t n = tile.n, p = tile.p, q = tile.q;
    const int64_t target = floats ? fragment.at(i) : target_of(tile, y_bytes);
    if (target == kZero) return;
    for (int u = group.unit_begin; u < group.unit_end; ++u) {
      const WgradUnit& unit = params.unit[u];
      for (int b = 0; b < kMaxWgradBlocks; ++b) {
        if (unit.c_block[b] < 0) continue;
        const int64_t block_at = (unit.start + b * unit.step) * 16;
        const WgradPart& part = params.part[group.part_begin + block_at / params.x_part_bytes];
        const int64_t in_part = block_at % params.x_part_bytes + x_bytes - back * channels * 2;
        if (in_part < 0 || in_part >= params.x_part_bytes || part.c_block != unit.c_block[b])
          throw py::index_error("another part");
        const BoxPixel in = box_pixel(x, x_pixels, in_part, channels);
        if (in.row < 0) continue;
        int32_t x_image, x_row;
        x.box_h.divmod(in.row, x_image, x_row);
        const int64_t h = p * params.stride_h + part.dh + x_row * x.step_h;
        const int64_t w = q * params.stride_w + part.dw + in.column * x.step_w;
        if (n + x_image >= x.n || h < 0 || h >= x.h || w < 0 || w >= x.w) continue;
        const int64_t source = (n + x_image) * x.n_stride + h * x.h_stride + w * x.w_stride;
        const int64_t begin = first_c + unit.c_block[b] * channels, end = std::min<int64_t>(begin + channels, params.c);
        if (folds) {
          auto filter = [&](int32_t c) { return weight_element(params, 0, unit.r[b], unit.s[b], c); };
          folded_products(problem, params.x_fold.fold, folded_pixel(source / params.x_fold.row, x.w, x.h),
                          static_cast<int32_t>(begin), static_cast<int32_t>(end), filter, target, products);
          continue;
        }
        for (int64_t c = begin; c < end; ++c) {
          const int64_t filter = weight_element(params, 0, unit.r[b], unit.s[b], static_cast<int32_t>(c));
          const std::array<int64_t, 5> at{c, parts.first * params.groups, w, h, n + x_image};
          products.emplace_back(splits ? split_element(input_side(problem), problem.groups, operand, params.parts,
                                                       parts.first, mapped(launch.x_map, at))
                                       : in_planes(params.x_order, source + c * x.c_stride),
                                filter, target);
        }
      }
    }
  };
  for (uint32_t c_job = 0; c_job < params.c_jobs.divisor; ++c_job) {
    for (uint32_t g = 0; g < params.tap_groups.divisor; ++g) {
      for (int32_t t = 0; t < params.tiles; ++t) {
        const WgradTile tile(params, t);
        if (rows) copied = copied_rows(launch, tile, at.block, at.number);
        for (int32_t step = 0; step < 2 * params.step_pairs; ++step) {
          if (floats) {
            fragment = float_pixels(launch, tile, params.step[step], at.block, at.number);
            for (int64_t& pixel : fragment) pixel = pixel == kZero ? kZero : pixel - filter * problem.y_strides.c;
          }
          for (int32_t i = 0; i < 16; ++i) {
            multiply(params.tap_group[g], c_job * params.c_blocks_per_job * channels, tile, params.step[step], i);
          }
        }
      }
    }
  }
  return products;
}

}  // namespace

void check_wgrad_copies(const Plan& plan, const ConvProblem& problem) {
  const WgradLaunch launch = wgrad_launch(plan, problem);
  if (launch.params.x_copied) check_copy(launch.x_map, 2, 0);
  const bool floats = plan.kernel->config.as<WgradConfig>().staging == WgradStaging::kFloats;
  for (int i = 0; i < launch.y_maps; ++i) check_copy(launch.y_map[i], floats ? 4 : 2, 0);
  if (launch.x_planes.size[0] > 0) check_copy(launch.x_planes, 2, 0);
  if (launch.y_planes.size[0] > 0) check_copy(launch.y_planes, 2, 0);
}

void bind_wgrad(py::module_& m) {
  m.def("check_streaming", &check_streaming, "problem"_a, "kernel"_a, "device"_a);
  m.def(
      "wgrad_products",
      [](const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device, int32_t filter,
         int32_t product) {
        if (const char* reason = offer(kernel, problem, device).why_not) throw py::value_error(reason);
        return wgrad_products(problem, kernel, device, filter, product);
      },
      "problem"_a, "kernel"_a, "device"_a, "filter"_a = 0, "product"_a = 0);
}

}  // namespace fastconv
