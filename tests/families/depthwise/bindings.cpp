// What depthwise kernels multiply, by the index maths that they share with the planner.
#include "fastconv/families/depthwise/any_plan.h"
#include "fastconv/families/depthwise/banded_plan.h"
#include "fastconv/families/depthwise/cross_plan.h"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/families/depthwise/pairs_plan.h"
#include "fastconv/families/depthwise/plan.h"
#include "native.h"

namespace fastconv {
namespace {

// What the depthwise kernels multiply for the first channel of the target, as their loops do.
Products depthwise_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseConfig &config = kernel.config.as<DepthwiseConfig>(), across = config.across();
  const DepthwiseParams params = depthwise_params(plan, problem);
  const bool turned = problem.pass == Pass::kDgrad && !config.transposed();
  Products products;
  // Of a thread's source column, where TMA puts the block's into shared memory.
  auto staged = [&](const DepthwisePlace& at, const DepthwisePlace& block, int32_t b) {
    const DepthwiseStages& stages = params.stages;
    const auto size = static_cast<int32_t>(element_size(problem.dtype));
    const int32_t offset = staged_offset(config, params, size, at, block) + b * staged_column_bytes(config, size);
    const bool by_channel = config.lanes == Lanes::kChannels;
    const int32_t column_bytes = by_channel ? stages.channels * size : size;
    const int32_t channel = by_channel ? offset % column_bytes / size : offset / stages.channel_bytes;
    const int32_t column = (by_channel ? offset : offset % stages.channel_bytes) / column_bytes;
    if (block.channel + channel != at.channel || column >= stages.columns || offset >= stages.box_bytes) return -1;
    // Where TMA may begin, and where accesses of several columns may.
    const int32_t first = staged_column(config, params, size, block);
    const RowAccesses read = RowAccesses::source(config);
    const int32_t whole = staged_offset(config, params, size, at, block) + read.lead * size;
    if (!by_channel && (first * size % 16 != 0 || whole % (read.vector * size) != 0)) return -1;
    return first + column;
  };
  auto add_run = [&](const DepthwisePlace& at, const DepthwisePlace& block) {
    const int32_t outputs = params.h.outputs(at.row);
    int32_t first = config.first_output();
    for (int32_t row = 0; row < config.seen(outputs); row += config.rows_a_shift(), first += config.shift()) {
      for (int32_t a = 0; a < config.rows_a_shift(); ++a) {
        for (int32_t slot = 0; slot < config.slots(); ++slot) {
          const int32_t r = config.row_tap(slot, a), output = first + slot;
          const int32_t h = params.h.source(at.row) + (row + a) * params.h.source_step;
          const int32_t to_h = at.row + output * params.h.target_step();
          if (r >= config.taps || output < 0 || output >= outputs || h < 0 || h >= params.h.source_extent) continue;
          const int32_t step = row / config.rows_a_shift();
          if (params.patch_boxes > 0 && (step < params.steps_before || step >= params.patch_steps)) continue;
          for (int32_t b = 0; b < across.seen(config.columns); ++b) {
            for (int32_t k = 0; k < config.columns; ++k) {
              const int32_t w =
                  config.staged() ? staged(at, block, b) : params.w.source(at.column) + b * params.w.source_step;
              const int32_t to_w = at.column + k * params.w.target_step();
              if (!across.meets(k, b) || w < 0 || w >= params.w.source_extent || to_w >= params.w.target_extent) {
                continue;
              }
              const int32_t s = across.tap(k, b);
              const int32_t tap_h = turned ? config.taps - 1 - r : r, tap_w = turned ? config.taps_w - 1 - s : s;
              products.emplace_back(
                  at.image * params.source_strides.n + h * params.source_strides.h + w * params.source_strides.w,
                  tap_h * params.filter_strides.h + tap_w * params.filter_strides.w,
                  at.image * params.target_strides.n + to_h * params.target_strides.h + to_w * params.target_strides.w);
            }
          }
        }
      }
    }
  };
  if (problem.pass == Pass::kWgrad) {
    for (int64_t begin = 0; begin < plan.split * params.slice_tiles; begin += params.slice_tiles) {
      for (int64_t tile = begin; tile < std::min(begin + params.slice_tiles, params.tiles); ++tile) {
        if (!config.staged()) {
          const DepthwisePlace at = depthwise_tile(params, 0, static_cast<int32_t>(tile));
          add_run(at, at);
          continue;
        }
        const DepthwisePlace block = depthwise_patch(params, 0, static_cast<int32_t>(tile));
        for (DepthwisePlace at = block; at.column < block.column + params.tiling.columns * config.columns;
             at.column += config.columns) {
          if (at.column < params.w.target_extent) add_run(at, block);
        }
      }
    }
    return products;
  }
  for (int32_t block = 0; block < plan.grid; ++block) {
    for (int32_t thread = 0; thread < plan.block_threads; ++thread) {
      const DepthwisePlace at = depthwise_place(config, params, block, thread);
      if (at.exists && at.channel == 0) add_run(at, depthwise_place(config, params, block, 0));
    }
  }
  return products;
}

// As the lanes of the banded depthwise kernels hold windows, taps and targets.
Products depthwise_banded_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseBandedConfig& config = kernel.config.as<DepthwiseBandedConfig>();
  const DepthwiseConfig rows = config.rows();
  const DepthwiseBandedParams params = depthwise_banded_params(plan, problem);
  const bool turned = problem.pass == Pass::kDgrad && !config.transposed();
  Products products;
  auto add_row = [&](const BandedTile& tile, int32_t h, int32_t to_h, int32_t r) {
    for (int32_t i = 0; i < kBandedTile * kBandedBlock * config.window(); ++i) {
      const int32_t k = i % config.window(), n = i / config.window() % kBandedBlock;
      const int32_t block = i / (config.window() * kBandedBlock);
      auto held = [&](int32_t column) {
        return banded_block(config, params, tile, block % 8 * 4 + column % 8 / 2, block / 8);
      };
      const BandedBlock from = held(k), to = held(n);
      const int32_t w = from.source + k / 8 * 8 + k % 2, to_w = to.target + n % 2, s = banded_tap(config, params, k, n);
      if (!from.exists || s < 0 || s >= params.taps_w || w < 0 || w >= params.source_w || to_w >= params.target_w) {
        continue;
      }
      const int32_t last_h = params.taps_h - 1, last_w = params.taps_w - 1;
      products.emplace_back(
          from.image * params.source_strides.n + h * params.source_strides.h + w * params.source_strides.w,
          (turned ? last_h - r : r) * params.filter_strides.h + (turned ? last_w - s : s) * params.filter_strides.w,
          to.image * params.target_strides.n + to_h * params.target_strides.h + to_w * params.target_strides.w);
    }
  };
  auto add_tile = [&](const BandedTile& tile) {
    const int32_t outputs = std::min(params.run_rows, params.target_h - tile.row);
    if (config.any_rows()) {
      for (int32_t i = 0; i < outputs * params.taps_h; ++i) {
        const int32_t output = i % outputs, r = i / outputs, h = params.first_row(config, tile.row) + output + r;
        if (h >= 0 && h < params.source_h) add_row(tile, h, tile.row + output, r);
      }
      return;
    }
    int32_t first = rows.first_output();
    for (int32_t row = 0; row < rows.seen(outputs); row += rows.rows_a_shift(), first += rows.shift()) {
      for (int32_t i = 0; i < rows.rows_a_shift() * rows.slots(); ++i) {
        const int32_t a = i / rows.slots(), slot = i % rows.slots(), output = first + slot;
        const int32_t h = params.first_row(config, tile.row) + row + a, r = rows.row_tap(slot, a);
        if (r >= params.taps_h || output < 0 || output >= outputs || h < 0 || h >= params.source_h) continue;
        add_row(tile, h, tile.row + output, r);
      }
    }
  };
  if (problem.pass == Pass::kWgrad) {
    for (int32_t begin = 0; begin < plan.split * params.slice_tiles; begin += params.slice_tiles) {
      for (int32_t i = begin; i < std::min(begin + params.slice_tiles, params.tiles); ++i) {
        add_tile(banded_tile(params, 0, i));
      }
    }
    return products;
  }
  for (int32_t warp = 0; warp < params.channels * params.tiles; ++warp) {
    const BandedTile tile = banded_tile(params, warp);
    if (tile.channel == 0) add_tile(tile);
  }
  return products;
}

// As the warps of the depthwise weight gradient stage pixels of a step, load them and multiply.
Products depthwise_diagonal_wgrad_products(const ConvProblem& problem, const KernelEntry& kernel,
                                           const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DiagonalWgradConfig config{kernel.config.as<DepthwiseDiagonalConfig>()};
  const DepthwiseConfig rows = config.rows();
  const DiagonalWgradParams params = depthwise_diagonal_wgrad_params(plan, problem);
  Products products;
  // Of filter 0.
  auto add_channels = [&](int64_t from, int64_t filter, int64_t to) {
    for (int32_t c = 0; c < 1 << params.group_log2; ++c) {
      products.emplace_back(from + c * params.source_strides.c, filter + c * params.filter_strides.c, to);
    }
  };
  for (int32_t index = 0; config.boxed() && index < params.boxes.units; ++index) {
    const DiagonalWgradUnit unit(params, index);
    for (int32_t i = 0; i < unit.steps * config.taps * config.columns() * params.taps_w; ++i) {
      const int32_t s = i % params.taps_w, column = i / params.taps_w % config.columns();
      const int32_t r = i / params.taps_w / config.columns() % config.taps;
      const int32_t step = i / params.taps_w / config.columns() / config.taps;
      const int32_t image = unit.image + column / params.boxes.columns, q = unit.column + column % params.boxes.columns;
      const int32_t h = unit.source_row + step, w = q * config.stride - params.padding_w + s;
      const int32_t p = (step - r) / config.stride;
      if (params.boxes.source_pixel(column, params.target_w - unit.column) % params.boxes.pitch + s / config.stride >=
          params.boxes.pitch) {
        throw std::runtime_error("a pixel that is not staged");
      }
      if (r >= params.taps_h || step < r || (step - r) % config.stride != 0 || p >= unit.outputs || h < 0 ||
          h >= params.source_h || w < 0 || w >= params.source_w || q >= params.target_w || image >= params.images) {
        continue;
      }
      const Strides &source = params.source_strides, &target = params.target_strides;
      add_channels(image * source.n + h * source.h + w * source.w,
                   r * params.filter_strides.h + s * params.filter_strides.w,
                   image * target.n + (unit.row + p) * target.h + q * target.w);
    }
  }
  if (config.boxed()) return products;
  if (params.positions > config.most_positions()) throw std::runtime_error("more positions than threads copy");
  auto add_row = [&](const DiagonalWgradTile& tile, int32_t h, int32_t to_h, int32_t r) {
    for (int32_t i = 0; i < config.columns() * params.taps_w; ++i) {
      const int32_t column = i / params.taps_w, s = i % params.taps_w;
      // A product has two taps, and pairs of taps lie equally far apart.
      const int32_t position = diagonal_wgrad_position(config, params, tile, column) +
                               diagonal_wgrad_distance(config, params, s % 2) + s / 2 * (2 / config.stride);
      if (position >= params.positions) throw std::runtime_error("a position that is not staged");
      const DiagonalPixel from = diagonal_wgrad_source(config, params, tile, position);
      const DiagonalPixel to = diagonal_wgrad_target(params, tile, column);
      if (!from.exists || !to.exists) continue;
      const Strides &source = params.source_strides, &target = params.target_strides;
      add_channels((tile.image + from.image) * source.n + h * source.h + from.column * source.w,
                   r * params.filter_strides.h + s * params.filter_strides.w,
                   (tile.image + to.image) * target.n + to_h * target.h + to.column * target.w);
    }
  };
  for (int32_t slice = 0; slice < plan.split; ++slice) {
    for (DiagonalWgradWalk walk(config, params, slice); walk.exists(); walk.next(config, params)) {
      const DiagonalWgradTile tile(params, walk.tile(params));
      for (int32_t i = 0; i < config.stride * rows.slots(); ++i) {
        const int32_t a = i / rows.slots(), slot = i % rows.slots(), r = rows.row_tap(slot, a);
        const int32_t h = walk.source_row(config, params, a), output = walk.step - (rows.slots() - 1 - slot);
        if (r >= params.taps_h || output < 0 || output >= walk.outputs || h < 0 || h >= params.source_h) continue;
        add_row(tile, h, walk.row + output, r);
      }
    }
  }
  return products;
}

// As the lanes of the depthwise kernels with products of pairs of channels read pixels of a box and multiply them.
Products depthwise_pairs_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwisePairsConfig& config = kernel.config.as<DepthwisePairsConfig>();
  const DepthwisePairsParams params = depthwise_pairs_params(plan, problem);
  const DepthwisePairsTiling& tiling = params.tiling;
  const bool turned = problem.pass == Pass::kDgrad;
  const int32_t last_h = params.taps_h - 1, last_w = params.taps_w - 1;
  const Strides &from = params.source_strides, &tap = params.filter_strides, &to = params.target_strides;
  Products products;
  auto add_row = [&](const PairsShare& share, const PairsUnit& unit, int32_t row, int32_t output, int32_t r) {
    const int32_t h = unit.source_row + row;
    for (int32_t i = 0; i < tiling.images * tiling.runs * tiling.targets * kRunPositions; ++i) {
      const int32_t position = run_position(i / 4 % 4, i % 4), target = i / kRunPositions % tiling.targets;
      const int32_t run = i / kRunPositions / tiling.targets, s = position - target;
      const int32_t pixel = params.source_pixel(run, config.box_rows()) + position;
      const int32_t image_pixels = config.box_rows() * tiling.pitch(), column = pixel % image_pixels;
      if (column >= tiling.pitch()) throw std::runtime_error("a pixel of another row");
      const int32_t image = unit.image + pixel / image_pixels, w = share.column - params.padding_w + column;
      const int32_t to_pixel = params.target_pixel(run) + target;
      const int32_t to_image = unit.image + to_pixel / tiling.columns();
      const int32_t to_w = share.column + to_pixel % tiling.columns();
      if (image != to_image) throw std::runtime_error("a target of another image");
      if (s < 0 || s > last_w || image >= params.images || to_w >= params.target_w || w < 0 || w >= params.source_w) {
        continue;
      }
      products.emplace_back(image * from.n + h * from.h + w * from.w,
                            (turned ? last_h - r : r) * tap.h + (turned ? last_w - s : s) * tap.w,
                            image * to.n + (unit.row + output) * to.h + to_w * to.w);
    }
  };
  for (int32_t block = 0; block < plan.grid; ++block) {
    const PairsShare share(params, block);
    if (share.channel != 0) continue;
    for (int32_t index = share.first_unit; index < params.units; index += tiling.shares) {
      const PairsUnit unit(config, params, index);
      for (int32_t i = 0; i < unit.boxes * config.box_rows() * config.taps; ++i) {
        const int32_t slot = i % config.taps, row = i / config.taps, output = unit.output + row + slot;
        const int32_t r = config.taps - 1 - slot, h = unit.source_row + row;
        if (r > last_h || output < 0 || output >= unit.outputs || h < 0 || h >= params.source_h) continue;
        if (row / config.box_rows() >= unit.row_boxes) throw std::runtime_error("a row that no box brings");
        if (output >= unit.output + unit.boxes * config.box_rows()) {
          throw std::runtime_error("a target that no box stores");
        }
        add_row(share, unit, row, output, r);
      }
    }
  }
  return products;
}

// As the lanes of the depthwise weight gradient by products of rows go through boxes of x and of dy.
Products depthwise_cross_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseCrossConfig& config = kernel.config.as<DepthwiseCrossConfig>();
  const DepthwiseCrossParams params = depthwise_cross_params(plan, problem);
  const DepthwiseCrossTiling& tiling = params.tiling;
  const Strides &from = params.source_strides, &to = params.target_strides, &tap = params.filter_strides;
  if (tiling.images * tiling.columns % kCrossColumns != 0 || tiling.plane_bytes() % kCrossBanksBytes != 0 ||
      tiling.target_bytes(config) % kCrossBanksBytes != 0) {
    throw std::runtime_error("boxes are not whole steps and patterns of banks");
  }
  // Of a box, image and column of the pixel of its first row that lies there.
  struct Pixel {
    int32_t image, column;
  };
  auto pixel = [&](int32_t offset, int32_t image_bytes, int32_t pitch) {
    const int32_t apart = tiling.apart(image_bytes), image = offset / apart, column = offset % apart / kCrossPixelBytes;
    if (image >= tiling.images || column >= pitch) throw std::runtime_error("a pixel that is not staged");
    return Pixel{image, column};
  };
  // What the lanes multiply that have these columns of a step.
  struct Column {
    Pixel source, target;
    int32_t w, q, s;  // from the run's column on
  };
  std::vector<Column> columns;
  auto add_columns = [&](int32_t of_lane, int32_t half) {
    int32_t source = 0, target = 0;
    CrossColumns walk(config, tiling, of_lane);
    for (int32_t step = 0; step < tiling.steps(); ++step) {
      for (int32_t i = 0; i < 2 * config.shifts(half); ++i) {
        const int32_t shift = i / 2, column = of_lane + i % 2;
        const int32_t target_column = column + params.first_shift(config, half) + shift;
        const Pixel x = pixel(source + column * kCrossPixelBytes, tiling.source_image_bytes(), tiling.source_pitch());
        const Pixel dy = pixel(target + target_column * kCrossPixelBytes, tiling.target_image_bytes(config),
                               tiling.target_pitch(config));
        if (x.image != dy.image) throw std::runtime_error("a target of another image");
        columns.push_back({x, dy, config.stride * x.column + config.plane(half, params.padding_w),
                           params.lead(config) + dy.column, config.tap(half, shift)});
        if (config.half_of(config.tap(half, shift)) != half || config.shift_of(config.tap(half, shift)) != shift) {
          throw std::runtime_error("a tap's sum is looked for elsewhere");
        }
      }
      int32_t source_step, target_step;
      walk.next(source_step, target_step);
      source += source_step, target += target_step;
    }
  };
  for (int32_t i = 0; i < kCrossColumns; ++i) add_columns(i / 2 * 2, i % 2);
  Products products;
  auto add_rows = [&](const CrossRun& run, int32_t h, int32_t p, int32_t r) {
    for (const Column& column : columns) {
      const int32_t image = run.image + column.source.image, w = config.stride * run.column + column.w;
      const int32_t q = run.column + column.q, s = column.s;
      if (image >= params.images || s >= params.taps_w || w >= params.source_w || q < 0 || q >= params.target_w) {
        continue;
      }
      products.emplace_back(image * from.n + h * from.h + w * from.w, r * tap.h + s * tap.w,
                            image * to.n + p * to.h + q * to.w);
    }
  };
  auto add_box = [&](const CrossRun& run, int32_t box) {
    for (int32_t i = 0; i < kCrossSourceRows * tiling.rows; ++i) {
      const int32_t row = i % tiling.rows, product_row = i / tiling.rows, r = product_row - config.stride * row;
      const CrossSourceRow x_row(config, tiling, product_row);
      const int32_t p = run.row + box * tiling.rows + row;
      const int32_t h = run.source_row + (box * tiling.new_boxes(config) + x_row.box) * tiling.source_rows + x_row.row;
      if (r < 0 || r >= params.taps_h || h < 0 || h >= params.source_h || p >= params.target_h) continue;
      add_rows(run, h, p, r);
    }
  };
  for (int32_t slice = 0; slice < plan.split; ++slice) {
    for (CrossRun run(config, params, slice); run.exists(); run = run.next(config, params, slice)) {
      for (int32_t box = 0; box < run.boxes; ++box) add_box(run, box);
    }
  }
  return products;
}

// As the warps of the depthwise kernels with diagonal products stage columns, load them and multiply: row by row, or
// box by box.
Products depthwise_diagonal_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  if (problem.pass == Pass::kWgrad) return depthwise_diagonal_wgrad_products(problem, kernel, device);
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseDiagonalConfig& config = kernel.config.as<DepthwiseDiagonalConfig>();
  const DepthwiseConfig rows = config.rows();
  const DepthwiseDiagonalParams params = depthwise_diagonal_params(plan, problem);
  const bool turned = problem.pass == Pass::kDgrad && !config.transposed();
  const int32_t last_h = params.taps_h - 1, last_w = params.taps_w - 1;
  Products products;
  auto add_row = [&](const DiagonalBlock& block, int32_t h, int32_t to_h, int32_t r) {
    for (int32_t pair = 0; pair < kPairs * plan.tiling.as<DepthwiseDiagonalTiling>().groups; ++pair) {
      for (int32_t i = 0; i < kPairColumns * config.read_positions() * config.reads(); ++i) {
        const int32_t target = i % kPairColumns, position = i / kPairColumns;
        const int32_t staged = pair * config.advance() + position, s = diagonal_tap(config, params, position, target);
        if (staged >= params.staged.columns) throw std::runtime_error("a column that is not staged");
        const int32_t w = diagonal_source_column(config, params, block) + staged;
        const int32_t to_w = block.column + pair * kPairColumns + target;
        if (s < 0 || s > last_w || w < 0 || w >= params.source_w || to_w >= params.target_w) continue;
        for (int32_t c = 0; c < params.group_channels; ++c) {
          products.emplace_back(
              block.image * params.source_strides.n + c * params.source_strides.c + h * params.source_strides.h +
                  w * params.source_strides.w,
              c * params.source_channel_step + (turned ? last_h - r : r) * params.filter_strides.h +
                  (turned ? last_w - s : s) * params.filter_strides.w,
              block.image * params.target_strides.n + to_h * params.target_strides.h + to_w * params.target_strides.w);
        }
      }
    }
  };
  const DepthwiseDiagonalTiling& tiling = plan.tiling.as<DepthwiseDiagonalTiling>();
  for (int32_t unit_index = 0; config.boxed() && unit_index < params.units; ++unit_index) {
    const DiagonalUnit unit(config, params, unit_index);
    for (int32_t i = 0; i < unit.boxes * config.box_rows * rows.slots(); ++i) {
      const int32_t slot = i % rows.slots(), row = i / rows.slots(), r = rows.row_tap(slot, row % config.stage_rows());
      const int32_t output = unit.output + row / config.stage_rows() * rows.shift() + slot, h = unit.source_row + row;
      if (r > last_h || output < 0 || output >= unit.outputs || h < 0 || h >= params.source_h) continue;
      if (row / config.box_rows >= unit.row_boxes) throw std::runtime_error("a row that no box brings");
      if (output >= unit.output + unit.boxes * config.box_targets()) {
        throw std::runtime_error("a target that no box stores");
      }
      for (int32_t column = 0; column < params.target_w; column += kDiagonalColumns * tiling.groups) {
        add_row({unit.image, unit.row, column, 0}, h, unit.row + output, r);
      }
    }
  }
  for (int32_t index = 0; !config.boxed() && index < plan.grid; ++index) {
    const DiagonalBlock block = diagonal_block(params, index, tiling.groups);
    if (block.chunk != 0) continue;
    const int32_t outputs = std::min(params.run_rows, params.target_h - block.row);
    const int32_t stages = params.stages(config, outputs), stage_rows = config.stage_rows();
    for (int32_t i = 0; i < stages * stage_rows * rows.slots(); ++i) {
      const int32_t slot = i % rows.slots(), row = i / rows.slots(), r = rows.row_tap(slot, row % stage_rows);
      const int32_t output = params.first_output + row / stage_rows * rows.shift() + slot;
      const int32_t h = params.first_row(config, block.row) + row;
      if (r > last_h || output < 0 || output >= outputs || h < 0 || h >= params.source_h) continue;
      if (row >= params.seen(config, outputs)) throw std::runtime_error("a row that is not staged");
      add_row(block, h, block.row + output, r);
    }
  }
  return products;
}

// As a block of the depthwise kernels for any filter stages a tensor's planes: offsets of elements, kOutside where
// there is none.
void stage_depthwise_any(const DepthwiseAnyPlanes& planes, const DepthwiseAnyParams& params, const DepthwiseAnySpan& h,
                         const DepthwiseAnySpan& w, int32_t first_image, int32_t images,
                         const std::function<int64_t(int32_t)>& channel_of, int64_t channels, int32_t at,
                         std::vector<int64_t>& smem) {
  const int32_t slots_h = static_cast<int32_t>(planes.by_slots_h.divisor);
  auto in = [](const DepthwiseAnySpan& span, int32_t row) { return row >= span.low && row < span.high; };
  for (int32_t plane = 0; plane < planes.planes(); ++plane) {
    const int32_t c = plane / planes.images, image = plane % planes.images;
    for (int32_t row = 0; row < planes.rows; ++row) {
      for (int32_t i = 0; i < planes.classes_w * planes.slots_w; ++i) {
        const int32_t y = params.h.row(row % slots_h, row / slots_h);
        const int32_t x = params.w.row(i % planes.slots_w, i / planes.slots_w);
        int64_t& to = smem.at(at + plane * planes.plane_pitch + row * planes.row_pitch +
                              i / planes.slots_w * planes.class_pitch + i % planes.slots_w);
        if (to != kNotStaged) throw py::index_error("staged twice");
        const bool exists = in(h, y) && in(w, x) && image < images && c < channels;
        to = exists ? (first_image + image) * planes.strides.n + channel_of(c) * planes.strides.c +
                          (h.first + h.step * y) * planes.strides.h + (w.first + w.step * x) * planes.strides.w
                    : kOutside;
        const bool begins = i % planes.piece == 0, follows = to == (exists ? (&to)[-1] + 1 : (&to)[-1]);
        if (begins ? exists && to % planes.piece != 0 : !follows) throw py::index_error("not a whole, aligned piece");
      }
    }
  }
}

// By its own tiling, or one that is given: the members of DepthwiseAnyTiling.
Products depthwise_any_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                                std::optional<std::array<int32_t, 8>> tiles) {
  const Plan plan = plan_of(kernel, problem, device);
  DepthwiseAnyTiling tiling = plan.tiling.as<DepthwiseAnyTiling>();
  if (tiles) {
    const auto& t = *tiles;
    tiling = {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]};
  }
  const int64_t split = tiles ? 1 : plan.split;
  const DepthwiseAnyConfig config = kernel.config.as<DepthwiseAnyConfig>();
  const DepthwiseAnyParams params = depthwise_any_params(config, problem, tiling, split);
  const DepthwiseAnyPlanes &source = params.source_planes, &taps = params.tap_planes, &targets = params.target_planes;
  const int64_t blocks = int64_t{params.h.all_strands()} * params.by_tiles_h.divisor * params.by_tiles_w.divisor *
                         params.by_channels.divisor *
                         (params.wgrad ? split : (problem.n + tiling.images - 1) / tiling.images);
  if (!tiles && blocks != plan.grid) throw py::index_error("not the plan's blocks");
  Products products;
  for (int32_t block = 0; block < blocks; ++block) {
    const DepthwiseAnyTile tile(params, block);
    if (!tile.exists() || tile.channel != 0) continue;
    for (int32_t i = 0; i < params.w.all_strands(); ++i) {
      const DepthwiseAnyStrand strand = params.w.strand(i);
      if (tile.column >= strand.targets || tile.h.taps == 0 || strand.taps == 0) continue;
      for (int32_t number = tile.begin; number < tile.end; ++number) {
        const DepthwiseAnyStep step(params, tile, number);
        const DepthwiseAnySpan tap_rows = params.h.tap_span(tile.h, step.tap_h);
        const DepthwiseAnySpan tap_columns = params.w.tap_span(strand, step.tap_w);
        std::vector<int64_t> smem(static_cast<size_t>(params.tap_at + taps.floats()), kNotStaged);
        stage_depthwise_any(
            source, params, params.h.source_span(tile.h, tile.row, step.tap_h),
            params.w.source_span(strand, tile.column, step.tap_w), step.first_image, step.images,
            [&](int32_t c) { return params.source_channel(c, step.source_index); }, params.channels, 0, smem);
        stage_depthwise_any(
            taps, params, tap_rows, tap_columns, params.wgrad ? step.first_image : 0, params.wgrad ? step.images : 1,
            [&](int32_t c) { return params.tap_channel(c, step.source_index); }, params.channels, params.tap_at, smem);
        for (int32_t thread = 0; thread < kDepthwiseAnyThreads; ++thread) {
          const DepthwiseAnyPlace place(params, config, thread);
          if (!place.exists || place.channel != 0) continue;
          for (int32_t of_h = 0; of_h < params.h.classes(); ++of_h) {
            for (int32_t of_w = 0; of_w < params.w.classes(); ++of_w) {
              const int32_t last =
                  std::min(place.first_tap_row + params.part_rows, params.h.slots_before(tap_rows.high, of_h));
              for (int32_t y = place.first_tap_row; y < last; ++y) {
                for (int32_t x = 0; x < params.w.slots_before(tap_columns.high, of_w); ++x) {
                  const int64_t tap =
                      smem.at(params.tap_at + (params.wgrad ? place.plane : place.channel) * taps.plane_pitch +
                              (of_h * params.h.tap_slots() + y) * taps.row_pitch + of_w * taps.class_pitch + x);
                  if (tap < kOutside) throw py::index_error("taps not staged");
                  if (tap == kOutside) continue;  // of an image that does not exist
                  for (int32_t j = 0; j < config.rows * config.columns; ++j) {
                    const int32_t row = place.row + j / config.columns, column = place.column + j % config.columns;
                    const int64_t from = smem.at(place.plane * source.plane_pitch +
                                                 (of_h * params.h.source_slots() + row + y) * source.row_pitch +
                                                 of_w * source.class_pitch + column + x);
                    if (from < kOutside) throw py::index_error("source not staged");
                    const bool exists = tile.row + row < tile.h.targets && tile.column + column < strand.targets;
                    if (from == kOutside || !exists) continue;
                    const int64_t to =
                        (params.wgrad ? 0 : step.first_image + place.plane % tiling.images) * targets.strides.n +
                        (tile.h.target + tile.h.target_step * (tile.row + row)) * targets.strides.h +
                        (strand.target + strand.target_step * (tile.column + column)) * targets.strides.w;
                    products.emplace_back(from, params.wgrad ? to : tap, params.wgrad ? tap : to);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  return products;
}

}  // namespace

void bind_depthwise(py::module_& m) {
  m.def("depthwise_any_products", &depthwise_any_products, "problem"_a, "kernel"_a, "device"_a,
        "tiling"_a = std::nullopt);
  m.def("depthwise_products", unless_refused(depthwise_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_banded_products", unless_refused(depthwise_banded_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_cross_products", unless_refused(depthwise_cross_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_pairs_products", unless_refused(depthwise_pairs_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_diagonal_products", unless_refused(depthwise_diagonal_products), "problem"_a, "kernel"_a,
        "device"_a);
}

}  // namespace fastconv
