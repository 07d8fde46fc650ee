// What kernels of images of few channels multiply.
#include "fastconv/core/integers.h"
#include "fastconv/families/few_channels/embed_plan.h"
#include "fastconv/families/few_channels/lane_runs.h"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/families/few_channels/stem_plan.h"
#include "native.h"

namespace fastconv {
namespace {

// What a block of the kernels for images of few channels stages: elements of the tensor by words of shared memory.
std::vector<int64_t> stem_words(const StemBox& box, int32_t image, int32_t first_channel, int32_t first_row,
                                int32_t first_column) {
  std::vector<int64_t> words(static_cast<size_t>(box.words), kNotStaged);
  const int32_t first = first_column * box.folded - box.lead(first_column);
  std::vector<StemCopy> threads;
  for (int32_t unit = 0; unit < box.units; ++unit) {
    if (unit < kStemThreads) {
      threads.emplace_back(box, unit);
    } else {
      threads[unit % kStemThreads].next(box);
    }
    const StemCopy& copy = threads[unit % kStemThreads];
    const int32_t row = first_row + copy.row(box), column = first + copy.column(box);
    const int32_t channel = first_channel + copy.channel(box), place = copy.place(box);
    const bool exists =
        row >= 0 && row < box.extent_h && column >= 0 && column < box.extent_w && channel < box.channels;
    const int64_t from = image * box.stride.n + channel * box.stride.c + row * box.stride.h +
                         column * (box.folded > 1 ? 1 : box.stride.w);
    if ((exists && from % box.vector != 0) || place % box.vector != 0) throw py::index_error("not aligned");
    for (int32_t i = 0; i < box.vector; ++i) {
      int64_t& to = words.at(static_cast<size_t>(place + i));
      if (to != kNotStaged) throw py::index_error("staged twice");
      to = exists ? from + i : kOutside;
    }
  }
  return words;
}

// By its own tiling, or one that is given: pixels, sets, stages, walkers.
StemTiling stem_tiling(const Plan& plan, const std::optional<std::array<int32_t, 5>>& given) {
  if (!given) return plan.tiling.as<StemTiling>();
  return {(*given)[0], (*given)[1], std::min((*given)[2], plan.tiling.as<StemTiling>().sets), (*given)[3], (*given)[4]};
}

// Of filter 0, as the others.
Products stem_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                       std::optional<std::array<int32_t, 5>> given) {
  const Plan plan = plan_of(kernel, problem, device);
  const StemParams params = stem_params(kernel.config.as<StemConfig>(), problem, stem_tiling(plan, given));
  if (!given && params.walkers * params.by_set_blocks.divisor != plan.grid) {
    throw py::index_error("not the plan's blocks");
  }
  const int32_t run = stem_run(params.stores);
  Products products;
  for (int32_t walker = 0; walker < params.walkers; ++walker) {
    for (int32_t index = walker; index < params.tiles; index += params.walkers) {
      const StemTile tile(params, index);
      const std::vector<int64_t> words = stem_words(params.x, tile.image, 0, tile.source_h, tile.source_w);
      const int64_t first = tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w;
      constexpr int32_t kUnit = StemConfig::unit_pixels();
      for (int32_t i = 0; i < round_up(tile.pixels(params), kUnit); ++i) {
        // A warp's, of which every fourth lane has others.
        const int32_t lane = i % kUnit / 4 * 4, row = i % 4;
        const int32_t pixel = i / kUnit * kUnit + stem_pixel(run, lane, row);
        const int32_t target = tile.target_of(params, params.target, pixel);
        const int32_t before = tile.target_of(params, params.target, pixel - row % run);
        if (target >= 0 ? before < 0 || target != before + row % run || (first + before) % run != 0 : before >= 0) {
          throw py::index_error("a run of pixels that do not lie side by side");
        }
        const int32_t place = params.x.lead(tile.source_w) + StemTile::source_of(params, pixel);
        for (int32_t k = 0; k < params.steps * kStemStep; ++k) {
          const int32_t depth = stem_depth(k / kStemStep, k / 4, k % 4);
          if (depth >= params.depth) continue;
          const StemTap tap(params, depth);
          const int64_t from = words.at(static_cast<size_t>(place + tap.place));
          if (from == kNotStaged) throw py::index_error("not staged");
          if (target >= 0 && from != kOutside) products.emplace_back(from, tap.filter, first + target);
        }
      }
    }
  }
  return products;
}

// How many neighbours a lane of the planner's tiling stores at once: filters, and pixels.
std::pair<int32_t, int32_t> stem_neighbours(const ConvProblem& problem, const KernelEntry& kernel,
                                            const DeviceSpec& device) {
  const StemParams params =
      stem_params(kernel.config.as<StemConfig>(), problem, plan_of(kernel, problem, device).tiling.as<StemTiling>());
  return {params.stores == StemStores::kFilters ? 4 : 1, stem_run(params.stores)};
}

// What warpgroups multiply of a tile whose quads lie side by side.
void add_squares(const ConvProblem& problem, const QuadsParams& params, const QuadsTile& tile, int64_t first,
                 const std::vector<std::array<int64_t, kQuadChannels>>& quads, Products& products) {
  const QuadsCells& cells = params.cells;
  if (params.tile_p % kQuadsSquare != 0 || params.tile_q % kQuadsSquare != 0) throw py::index_error("no squares");
  const auto columns = static_cast<int32_t>(cells.by_columns.divisor);
  for (int32_t pixel = 0; pixel < tile.rows * tile.columns; ++pixel) {
    const int32_t p = pixel / tile.columns, q = pixel % tile.columns;
    const int32_t place = params.cell_place(p * params.h.source_step, tile.lead + cells.shift) + q * kQuadsCellBytes;
    if (place % kQuadsCellBytes != 0) throw py::index_error("a cell that is not aligned");
    for (int32_t cell = 0; cell < problem.r * columns; ++cell) {
      const uint32_t step = cells.step[cell / 2];
      const auto at =
          static_cast<int32_t>((step & 0xffff) + (cell % 2 == 0 ? 0 : step >> 16)) * kQuadsCellBytes + place;
      for (int32_t t = 0; t < kQuadsCellTaps; ++t) {
        const int32_t r = cell / columns, s = cell % columns * kQuadsCellTaps + t;
        for (int32_t c = 0; c < params.channels && s < problem.s; ++c) {
          const int64_t from =
              quads.at(static_cast<size_t>(at * kQuadsCellTaps / kQuadsCellBytes + t))[static_cast<size_t>(c)];
          if (from == kOutside) continue;
          products.emplace_back(from, r * params.filter.h + s * params.filter.w + c * params.filter.c,
                                first + p * params.target.h + q * params.target.w);
        }
      }
    }
  }
}

// As the warps of the kernels that stage quads bring pixels, find taps and store runs, of filter 0. By its own tiling,
// or one that is given: pixels, sets, walkers.
Products quads_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                        std::optional<std::array<int32_t, 4>> given) {
  const Plan plan = plan_of(kernel, problem, device);
  QuadsTiling tiling = plan.tiling.as<QuadsTiling>();
  const auto run_length = static_cast<int32_t>(16 / element_size(problem.dtype));
  if (given) {
    const bool squares = kernel.config.as<QuadsConfig>().squares;
    tiling = {(*given)[0] * (squares ? kQuadsSquare : 1), (*given)[1] * (squares ? kQuadsSquare : run_length),
              squares ? kQuadsSquareSets : std::min((*given)[2], tiling.sets), (*given)[3]};
  }
  const QuadsParams params = quads_params(kernel.config.as<QuadsConfig>(), problem, tiling);
  if (!given && params.walkers * params.by_set_blocks.divisor != plan.grid) {
    throw py::index_error("not the plan's blocks");
  }
  if (params.bringing == QuadsBringing::kLines && params.stage_bytes % 128 != 0) {
    throw py::index_error("lines of the filter that lie in two of shared memory");
  }
  if (!given && params.units > quads_staged(params.words != QuadsWords::kNone) * plan.block_threads) {
    throw py::index_error("more than threads bring");
  }
  const int64_t unit_pixels = quads_pixels(kernel.config.as<QuadsConfig>().operands);
  const int32_t vector = params.unit_pixels, units_w = params.by_units_w.divisor;
  Products products;
  for (int32_t index = 0; index < params.tiles; ++index) {
    const QuadsTile tile(params, index);
    const int64_t image = tile.image * params.source.n;
    // Where each channel of a staged pixel comes from.
    const int32_t row_quads = params.place(1, 0) / params.quad_bytes, shift = params.cells.shift;
    std::vector<std::array<int64_t, kQuadChannels>> quads(
        static_cast<size_t>(params.units / units_w * row_quads + shift));
    for (int32_t unit = 0; unit < params.units; ++unit) {
      const int32_t h = tile.source_h + unit / units_w, w = tile.source_w + unit % units_w * vector;
      const bool exists = h >= 0 && h < params.h.source_extent && w >= 0 && w < params.w.source_extent;
      const int64_t from = image + h * params.source.h + w * params.source.w;
      if (exists && from % vector != 0) throw py::index_error("a word that is not aligned");
      for (int32_t i = 0; i < vector * params.channels; ++i) {
        // Element i of a unit's words, in the order in which they are put together.
        const int32_t word = i / vector, element = i % vector;
        const bool whole = params.words == QuadsWords::kInner;
        const int32_t pixel = whole ? i / params.channels : element, channel = whole ? i % params.channels : word;
        quads.at(static_cast<size_t>(unit / units_w * row_quads + unit % units_w * vector + pixel + shift))[channel] =
            exists ? from + word * (whole ? vector : params.source.c) + element : kOutside;
      }
    }
    const int64_t first = tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w;
    if (kernel.config.as<QuadsConfig>().squares) {
      add_squares(problem, params, tile, first, quads, products);
      continue;
    }
    for (int32_t pixel = 0; pixel < round_up(tile.rows * params.tile_q, unit_pixels); ++pixel) {
      // A lane finds each by its run.
      const int32_t of_run = pixel % params.run;
      const QuadsRun run(params, pixel / params.run);
      if (pixel / params.run >= params.runs) throw py::index_error("a run that is not known");
      const int32_t place = tile.lead + (run.place + of_run * params.place_step()) / params.quad_bytes;
      for (int32_t i = 0; i < params.taps; ++i) {
        const int32_t tap = quads_tap(params, i);
        for (int32_t c = 0; c < params.channels; ++c) {
          const int64_t from = quads.at(static_cast<size_t>(place + tap / params.quad_bytes))[static_cast<size_t>(c)];
          if (from == kOutside || of_run >= run.left(tile)) continue;
          products.emplace_back(from,
                                i / problem.s * params.filter.h + i % problem.s * params.filter.w + c * params.filter.c,
                                first + run.offset + of_run * params.target.w);
        }
      }
    }
  }
  return products;
}

// How often shared memory is accessed for the quads of a tile's first 32 pixels, over the least for so many bytes.
double quads_accesses(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const QuadsParams params = quads_params(kernel.config.as<QuadsConfig>(), problem, plan.tiling.as<QuadsTiling>());
  constexpr int32_t kBankWords = 32;
  const int32_t at_once = kBankWords * 4 / params.quad_bytes;  // lanes
  int32_t accesses = 0, least = 0;
  for (int32_t step = 0; step < params.steps; ++step) {
    for (int32_t first = 0; first < 4 * 32; first += at_once, ++least) {
      std::map<int32_t, std::set<int32_t>> words;  // of a bank
      for (int32_t i = first; i < first + at_once; ++i) {
        const int32_t lane = i % 32,
                      pixel = quads_pixel(kernel.config.as<QuadsConfig>().channels_inner, params.run, i / 32, lane / 4);
        const int32_t tap = step * kQuadsStepTaps + lane % 4;
        const int32_t place = QuadsRun(params, pixel / params.run).place + pixel % params.run * params.place_step();
        const bool exists =
            tap < params.taps || kernel.config.as<QuadsConfig>().operands == QuadsOperands::kScaledParts;
        const int32_t from = exists ? place + quads_tap(params, tap) : params.zeros_at();
        for (int32_t word = from / 4; word < (from + params.quad_bytes) / 4; ++word)
          words[word % kBankWords].insert(word);
      }
      size_t most = 0;
      for (const auto& [bank, of_bank] : words) most = std::max(most, of_bank.size());
      accesses += static_cast<int32_t>(most);
    }
  }
  return double(accesses) / least;
}

// As the warps of the kernels for patch embeddings read chunks of pixels, and know what they sum up, of filter 0.
Products embed_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const EmbedConfig& config = kernel.config.as<EmbedConfig>();
  const Plan plan = plan_of(kernel, problem, device);
  const EmbedParams params = embed_params(config, problem, plan.tiling.as<EmbedTiling>());
  if (int64_t{params.walkers} * params.by_set_blocks.divisor != plan.grid)
    throw py::index_error("not the plan's blocks");
  const bool wgrad = problem.pass == Pass::kWgrad;
  Products products;
  auto add_pixel = [&](int32_t pixel, int32_t stored, int32_t chunk) {
    if (pixel >= params.pixels || chunk >= params.chunks) return;
    const EmbedPixel at(params, pixel);
    for (int32_t value = 0; value < kEmbedChunk; ++value) {
      const EmbedTap tap(params, chunk, value);
      if (at.source % kEmbedChunk != 0) throw py::index_error("a chunk that is not aligned");
      const int64_t from = at.source + embed_chunk(params, chunk) + value;
      products.emplace_back(from,
                            tap.channel * params.filter.c + tap.row * params.filter.h + tap.column * params.filter.w,
                            EmbedPixel(params, stored).target);
    }
  };
  for (int64_t first = 0; first < params.pixels; first += kEmbedUnitPixels) {
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t i = 0; i < (wgrad ? kEmbedChunk : 2); ++i) {
        const auto unit = static_cast<int32_t>(first);
        if (wgrad) {
          // A lane's chunks: every eighth.
          const int32_t pixel = unit + embed_wgrad_pixel(config.channels_inner, i, lane);
          for (int32_t chunk = lane / 4; chunk < kEmbedMostChunks; chunk += 8) add_pixel(pixel, pixel, chunk);
          continue;
        }
        // What is summed up as column 2 * t and the next of two products is stored by lane t as four pixels.
        const int32_t column = lane / 4;
        const int32_t stored = config.channels_inner ? i * 8 + column : column / 2 * 4 + i * 2 + column % 2;
        for (int32_t step = 0; step < params.rounds * kEmbedSteps; ++step) {
          add_pixel(unit + embed_pixel(config.channels_inner, i, lane), unit + stored,
                    step * kEmbedStepChunks + lane % 4);
        }
      }
    }
  }
  return products;
}

Products stem_wgrad_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                             std::optional<std::array<int32_t, 5>> given) {
  const StemConfig& config = kernel.config.as<StemConfig>();
  const Plan plan = plan_of(kernel, problem, device);
  const StemWgradParams params = stem_wgrad_params(config, problem, stem_tiling(plan, given));
  const auto jobs = static_cast<int32_t>(params.by_jobs.divisor);
  if (!given && jobs * params.walkers != plan.grid) throw py::index_error("not the plan's blocks");
  std::map<int64_t, StemTap> taps;  // of filter 0, by elements of dW
  for (int32_t i = 0; i < params.depth; ++i) taps.emplace(StemTap(params, i).filter, StemTap(params, i));
  Products products;
  std::set<std::pair<int32_t, int64_t>> elements;  // of a walker
  for (int32_t block = 0; block < jobs * params.walkers; ++block) {
    const StemJob job(config, params, block);
    std::vector<int64_t> sums;  // of filter 0
    for (int32_t i = 0; i < params.job_quads * 4; ++i) {
      int32_t quad, thread;
      params.by_job_threads.divmod(i / 4, quad, thread);
      const int64_t element = stem_element(config, params, job, thread / 32, thread % 32, quad, i % 4);
      if (element < 0) continue;
      if (!elements.emplace(job.walker, element).second) throw py::index_error("an element of two sums");
      if (job.first_filter == 0 && taps.contains(element)) sums.push_back(element);
    }
    for (int32_t index = job.walker; index < params.tiles && !sums.empty(); index += params.walkers) {
      const StemTile tile(params, index);
      const std::vector<int64_t> x = stem_words(params.x, tile.image, 0, tile.source_h, tile.source_w);
      const std::vector<int64_t> y = stem_words(params.y, tile.image, job.first_filter, tile.p, tile.q);
      for (int32_t pixel = 0; pixel < tile.pixels(params); ++pixel) {
        const int32_t row = pixel / params.tile_q, column = pixel % params.tile_q;
        const int64_t target = y.at(static_cast<size_t>(params.y.lead(tile.q) + params.y.place(row, column)));
        if (target == kNotStaged) throw py::index_error("not staged");
        if (target == kOutside) continue;
        for (const int64_t element : sums) {
          const int32_t place = params.x.lead(tile.source_w) + StemTile::source_of(params, pixel);
          const int64_t from = x.at(static_cast<size_t>(place + taps.at(element).place));
          if (from == kNotStaged) throw py::index_error("not staged");
          if (from != kOutside) products.emplace_back(from, element, target);
        }
      }
    }
  }
  if (static_cast<int64_t>(elements.size()) != params.walkers * problem.k * problem.c * problem.r * problem.s) {
    throw py::index_error("an element without a sum");
  }
  return products;
}

}  // namespace

void bind_few_channels(py::module_& m) {
  m.def("run_column", &run_column, "run"_a, "product"_a, "column"_a);
  m.def("stem_products", &stem_products, "problem"_a, "kernel"_a, "device"_a, "tiling"_a = std::nullopt);
  m.def("quads_products", &quads_products, "problem"_a, "kernel"_a, "device"_a, "tiling"_a = std::nullopt);
  m.def("quads_accesses", &quads_accesses, "problem"_a, "kernel"_a, "device"_a);
  m.def("embed_products", &embed_products, "problem"_a, "kernel"_a, "device"_a);
  m.def("stem_neighbours", &stem_neighbours, "problem"_a, "kernel"_a, "device"_a);
  m.def("stem_wgrad_products", &stem_wgrad_products, "problem"_a, "kernel"_a, "device"_a, "tiling"_a = std::nullopt);
}

}  // namespace fastconv
