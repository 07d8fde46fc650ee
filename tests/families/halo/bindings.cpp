// What the kernels multiply, as their descriptors and loops have it, and how results reach memory.
#include "fastconv/families/halo/folded_filter.h"
#include "fastconv/families/halo/pixel_rows.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/families/halo/walk.cuh"
#include "fastconv/families/halo/work.h"
#include "native.h"

namespace fastconv {
namespace {

// For each accumulator that a lane stores, which it should be, and which it is; and turns of the slowest access.
struct Turned {
  std::vector<std::pair<int64_t, int64_t>> stored;
  int turns = 0;
};

// A warp's accesses to a buffer whose elements are numbered as they come.
struct TurningBuffer {
  std::vector<int64_t> elements;
  int element_bytes;

  // Lane i stores `values` from address i on.
  int store(const std::vector<std::pair<int, std::vector<int64_t>>>& lanes) {
    std::vector<int> addresses;
    const int bytes = static_cast<int>(lanes[0].second.size()) * element_bytes;
    for (const auto& [at, values] : lanes) {
      if (at % bytes != 0) throw py::index_error("not aligned");
      addresses.push_back(at);
      for (size_t i = 0; i < values.size(); ++i) once(elements.at(at / element_bytes + i), values[i]);
    }
    return bank_turns(addresses, bytes);
  }
};

// Accumulators on their way through rows of pixels, numbered (M-block * 64 + pixel) * channels + channel.
template <int kVector, int kTogether, int kBlockK, int kElementBytes, bool kPairs = false>
Turned pixel_rows(const HaloParams& params) {
  using Rows = PixelRows<kVector, kTogether, kBlockK, kElementBytes>;
  const Rows rows(params);
  auto number = [](int m, int pixel, int channel) { return int64_t{m * 64 + pixel} * kBlockK + channel; };
  TurningBuffer smem{std::vector<int64_t>(kEpilogueBytes / kElementBytes, kNothing), kElementBytes};
  Turned out;
  std::vector<std::pair<int, std::vector<int64_t>>> lanes(32);
  for (int m = 0; m < kTogether; ++m) {
    for (int warp = 0; warp < 4; ++warp) {
      if constexpr (kPairs) {
        for (int i = 0; i < Rows::kPass / 2; ++i) {
          for (int lane = 0; lane < 32; ++lane) {
            const int pixel = fragment_sum(warp, lane, i % 2, 0).pixel, c = i / 2 * 4, channel = lane % 4;
            const uint32_t at = Rows::further(static_cast<uint32_t>(rows.sum(m, {pixel, channel})), c);
            lanes[lane] = {static_cast<int>(at), {number(m, pixel, c + channel)}};
          }
          out.turns = std::max(out.turns, smem.store(lanes) / 2);  // eight pixels of two channels in the same banks
        }
      } else if constexpr (kElementBytes == 2) {
        for (int c = 0; c < Rows::kPass; c += 16) {
          for (int lane = 0; lane < 32; ++lane) {  // names row lane % 8 of matrix lane / 8: a channel of eight pixels
            auto& [at, values] = lanes[lane];
            at = rows.matrix_row(m, warp, lane) + c * Rows::kRowBytes, values.clear();
            for (int i = 0; i < 8; ++i) {
              values.push_back(number(m, warp * 16 + lane / 8 % 2 * 8 + i, c + lane / 16 * 8 + lane % 8));
            }
          }
          out.turns = std::max(out.turns, smem.store(lanes));
        }
      } else {
        for (int i = 0; i < Rows::kPass / 2; ++i) {  // accumulators
          for (int lane = 0; lane < 32; ++lane) {
            const FragmentSum at = fragment_sum(warp, lane, i / 2 % 2, i % 2);
            const int c = i / 4 * 8;
            lanes[lane] = {rows.sum(m, at) + c * Rows::kRowBytes, {number(m, at.pixel, c + at.channel)}};
          }
          out.turns = std::max(out.turns, smem.store(lanes));
        }
      }
    }
  }
  for (int warp = 0; warp < 4; ++warp) {
    for (int i = 0; i < Rows::kParts; ++i) {
      for (int k = 0; k < Rows::kPass; k += Rows::kStep) {
        const int ahead = k % (Rows::kStep * Rows::kBatch);
        std::vector<int> addresses;
        for (int lane = 0; lane < 32; ++lane) {
          const int first = Rows::first_channel(warp, lane);
          const auto pixel = rows.pixel(i, lane, first);
          const int at = static_cast<int>(Rows::further(pixel.from, ahead)) + (k - ahead) * Rows::kRowBytes;
          addresses.push_back(at);
          for (int v = 0; v < kVector; ++v) {
            out.stored.emplace_back(number(pixel.m, pixel.pixel + v, first + k),
                                    smem.elements.at(at / kElementBytes + v));
          }
        }
        out.turns = std::max(out.turns, bank_turns(addresses, kVector * kElementBytes));
      }
    }
  }
  return out;
}

Turned pixel_rows(int vector, int together, int block_k, int element_bytes, bool narrow, int across_log2) {
  HaloParams params{};
  params.block_q = narrow ? 8 : 64, params.blocks_q_log2 = across_log2;
  auto is = [&](int v, int t, int k, int bytes) {
    return vector == v && together == t && block_k == k && element_bytes == bytes;
  };
  if (is(1, 2, 64, 8)) return pixel_rows<1, 2, 64, 8, true>(params);
  if (is(1, 1, 64, 8)) return pixel_rows<1, 1, 64, 8, true>(params);
  if (is(1, 2, 64, 4)) return pixel_rows<1, 2, 64, 4, true>(params);
  if (is(8, 4, 64, 2)) return pixel_rows<8, 4, 64, 2>(params);
  if (is(8, 2, 128, 2)) return pixel_rows<8, 2, 128, 2>(params);
  if (is(8, 1, 256, 2)) return pixel_rows<8, 1, 256, 2>(params);
  if (is(2, 4, 32, 2)) return pixel_rows<2, 4, 32, 2>(params);
  if (is(2, 2, 16, 2)) return pixel_rows<2, 2, 16, 2>(params);
  if (is(1, 2, 128, 2)) return pixel_rows<1, 2, 128, 2>(params);
  if (is(1, 1, 256, 2)) return pixel_rows<1, 1, 256, 2>(params);
  if (is(4, 4, 64, 4)) return pixel_rows<4, 4, 64, 4>(params);
  if (is(4, 2, 128, 4)) return pixel_rows<4, 2, 128, 4>(params);
  if (is(4, 1, 256, 4)) return pixel_rows<4, 1, 256, 4>(params);
  if (is(2, 4, 32, 4)) return pixel_rows<2, 4, 32, 4>(params);
  if (is(2, 2, 64, 4)) return pixel_rows<2, 2, 64, 4>(params);
  if (is(2, 1, 128, 4)) return pixel_rows<2, 1, 128, 4>(params);
  if (is(1, 2, 128, 4)) return pixel_rows<1, 2, 128, 4>(params);
  if (is(1, 1, 256, 4)) return pixel_rows<1, 1, 256, 4>(params);
  throw py::value_error("not compiled");
}

// The same of rows of channels, warp 0: numbered pixel * channels + channel.
template <int kBlockK, int kElementBytes>
Turned channel_rows() {
  using Rows = ChannelRows<kBlockK, kElementBytes>;
  TurningBuffer smem{std::vector<int64_t>(kEpilogueBytes / 4 / kElementBytes, kNothing), kElementBytes};
  Turned out;
  std::vector<std::pair<int, std::vector<int64_t>>> lanes(32);
  if constexpr (kElementBytes == 2) {
    for (int c = 0; c < Rows::kChunk; c += 16) {
      for (int lane = 0; lane < 32; ++lane) {  // names row lane % 8 of matrix lane / 8: a pixel of eight channels
        auto& [at, values] = lanes[lane];
        at = Rows::run(lane % 16, c / 8 + lane / 16), values.clear();
        for (int i = 0; i < 8; ++i) values.push_back(int64_t{lane % 16} * kBlockK + c + lane / 16 * 8 + i);
      }
      out.turns = std::max(out.turns, smem.store(lanes));
    }
  } else {
    for (int i = 0; i < Rows::kChunk / 2; i += 2) {  // accumulators
      for (int lane = 0; lane < 32; ++lane) {
        const FragmentSum at = fragment_sum(0, lane, i / 2 % 2, 0);
        const int64_t first = int64_t{at.pixel} * kBlockK + i / 4 * 8 + at.channel;
        lanes[lane] = {Rows::sum(i / 4 * 8, at), {first, first + 1}};
      }
      out.turns = std::max(out.turns, smem.store(lanes));
    }
  }
  for (int first = 0; first < 16; first += Rows::kRows) {
    std::vector<int> addresses;
    for (int lane = 0; lane < 32; ++lane) {
      const int row = first + lane / Rows::kRuns, run = lane % Rows::kRuns;
      addresses.push_back(Rows::run(row, run));
      for (int i = 0; i < Rows::kRun; ++i) {
        out.stored.emplace_back(int64_t{row} * kBlockK + run * Rows::kRun + i,
                                smem.elements.at(addresses.back() / kElementBytes + i));
      }
    }
    out.turns = std::max(out.turns, bank_turns(addresses, 16));
  }
  return out;
}

Turned channel_rows(int block_k, int element_bytes) {
  auto is = [&](int k, int bytes) { return block_k == k && element_bytes == bytes; };
  if (is(64, 2)) return channel_rows<64, 2>();
  if (is(256, 2)) return channel_rows<256, 2>();
  if (is(32, 4)) return channel_rows<32, 4>();
  if (is(128, 4)) return channel_rows<128, 4>();
  throw py::value_error("not compiled");
}

// Turns that a warp's sums of eight streams take on their way to lines, when planes are so far apart.
int stream_turns(uint32_t plane, int element_bytes) {
  const int pitch = stream_pitch(line_pitch(1, element_bytes), plane);
  std::vector<int> addresses;
  for (int lane = 0; lane < 32; ++lane) {  // two 16-bit pixels of a stream, or one float of two
    const FragmentSum at = fragment_sum(0, lane, 0, 0);
    const int stream = element_bytes == 2 ? at.pixel : at.channel, pixel = element_bytes == 2 ? at.channel : at.pixel;
    addresses.push_back(stream * pitch + StreamLines(stream * plane, 0).lead + pixel * element_bytes);
  }
  return bank_turns(addresses, 4);
}

// Whether those who make operands of a copy of raw planes find each channel's pixels where TMA puts them.
void check_raw_floats(const HaloParams& params, const HaloConfig& config, const RawRun& run, int32_t first) {
  const RawFloats from(params, run, first, config.channels);
  const int32_t phases_log2 = params.raw.phases_log2;
  const auto channels_log2 = std::countr_zero(static_cast<uint32_t>(config.channels));
  for (int32_t at = 0; at < config.channels; ++at) {  // place of a plane in the stage
    const int32_t c = params.raw.whole ? at : staged_channel(phases_log2, channels_log2, at);
    const int32_t lead = raw_lead(params, run, first, c & ((1 << phases_log2) - 1), raw_unit(sizeof(float)));
    const int32_t copied = params.raw.whole ? at * static_cast<int32_t>(params.in_c) + run.flat(params) + first
                                            : at * params.raw.box_w + lead;
    int32_t read = from.first + first;
    for (int32_t i = 0; i < c; ++i) read += from.next[i % RawFloats::kPeriod];
    if (read != copied) throw py::index_error("another channel's pixels");
  }
}

// What a staged halo holds: for each pixel its offset in the input, of channel 0, or kZero. By the same steps as the
// producers.
std::vector<int64_t> staged_halo(const HaloParams& params, const HaloConfig& config, const Tile& tile,
                                 const TapGroup& group) {
  const HaloStaging staging = config.staging;
  const int32_t unit = raw_unit(config.operands == OperandForm::kHalf ? 2 : 4);
  std::vector<int64_t> halo(params.halo_rows * params.halo_pitch, kNothing);
  auto put = [&](int32_t row, int32_t column, int32_t n, int32_t h, int32_t w) {
    int64_t& pixel = halo.at(row * params.halo_pitch + column);
    if (pixel != kNothing) throw py::index_error("staged twice");
    const bool inside = n < params.n && h >= 0 && h < params.height && w >= 0 && w < params.width;
    pixel = inside ? n * params.in_n + h * params.in_h + w * params.in_w : kZero;
  };
  auto put_copy = [&](int32_t i) {
    const bool large = is_large_tile(config.m_blocks, config.block_k), pieces = large && params.raw.advance > 0;
    const int32_t pixels = large ? params.raw.box_w : params.load_rows * params.halo_pitch;
    const int32_t columns = pieces ? pixels : params.halo_pitch, left = pieces ? i * params.raw.advance : 0;
    if (i > 0 && pixels * config.pixel_bytes() % 128 != 0) throw py::index_error("a copy begins within 128 bytes");
    const HaloRow first = halo_row(params, tile, group, i * params.load_rows);
    for (int32_t j = 0; j < pixels; ++j) {
      const int32_t place = i * pixels + j;
      put(place / params.halo_pitch, place % params.halo_pitch, first.n, first.h + j / columns * params.in_step_h,
          halo_col(params, tile, group) + left + j % columns * params.in_step_w);
    }
  };
  auto put_row = [&](int32_t i) {
    const HaloRow row = halo_row(params, tile, group, i);
    for (int32_t column = 0; column < params.halo_pitch; ++column) {
      put(i, column, row.n, row.h, halo_col(params, tile, group) + column * params.in_step_w);
    }
  };
  if (staged_as_planes(staging)) {
    if (staging == HaloStaging::kShifted) {
      // What a row of the copy's tensor has there: the first plane, and the second as copied, kShift pixels early.
      const auto plane = static_cast<int32_t>(params.in_c);
      if (plane != params.width || params.c % 2 != 0) throw py::index_error("no pairs of planes without gaps");
      if (tile.q % unit != 0 || (tile.q + plane - kShift) % unit != 0) throw py::index_error("no column of a copy");
      if (kShift + 64 > params.raw.box_w || params.raw.box_w % unit != 0) throw py::index_error("not copied");
    }
    for (int32_t i = 0; i < params.loads * 64; ++i) put(0, i, tile.n, tile.p, tile.q + i);
  } else if (staging == HaloStaging::kTma) {
    for (int32_t i = 0; i < params.loads; ++i) put_copy(i);
    if (std::count(halo.begin(), halo.end(), kNothing) > 0) throw py::index_error("not copied");
  } else if (staging == HaloStaging::kTransposed) {
    const int32_t w0 = halo_col(params, tile, group);
    const HaloColumns inside(params, w0);
    for_each_raw_run(params, tile, group, [&](const RawRun& run) {
      for (int32_t row = run.row; row < run.row + run.rows; ++row) {
        for (int32_t column = 0; column < params.halo_pitch; ++column) {
          if (run.count == 0 || column < inside.begin || column >= inside.end) put(row, column, params.n, 0, 0);
        }
      }
      for (int32_t first = 0; first < run.count; first += params.raw.advance) {
        const int32_t end = std::min(run.count, first + params.raw.advance);
        for (int32_t phase = 0; phase < 1 << params.raw.phases_log2; ++phase) {
          const int32_t lead = raw_lead(params, run, first, phase, unit), start = run.flat(params) + first - lead;
          if ((start + raw_shift(params.in_c, phase, unit)) % unit != 0) {
            throw py::index_error("no column of TMA");
          }
          if ((phase * params.in_c + start) % unit != 0) throw py::index_error("no 16-byte address");
          if (end - first + lead > params.raw.box_w) throw py::index_error("not copied");
          if (params.raw.whole && end < run.count) throw py::index_error("another copy of the same planes");
        }
        if (config.operands != OperandForm::kHalf) check_raw_floats(params, config, run, first);
        for (int32_t i = first; i < end; ++i) {
          const int32_t pixel = halo_pixel(params, run, w0, i), flat = run.flat(params) + i;
          if (pixel < 0) continue;
          put(pixel / params.halo_pitch, pixel % params.halo_pitch, run.n, flat / params.width, flat % params.width);
        }
      }
    });
  } else {
    for (int32_t i = 0; i < params.halo_rows; ++i) put_row(i);
  }
  return halo;
}

HaloParams counting_pixels(HaloParams params) {
  params.in_w = 1, params.in_h = params.width, params.in_n = int64_t{params.width} * params.height;
  return params;
}

// Element of the tensor that is channel c of a pixel, by the pixel's first element as the products meet it.
int64_t in_tensor(const ConvProblem& problem, const HaloParams& params, Operand operand, int64_t pixel, int32_t c) {
  if (params.in_split.parts == 0) return in_planes(params.in_order, pixel + c * params.in_c);
  const Side side = problem.pass == Pass::kDgrad ? output_side(problem) : input_side(problem);
  return split_element(side, problem.groups, operand, params.in_split.parts, 0, pixel + c * params.in_c);
}

// Blocks of the grid and, in their order, its tiles: phase, group, filter tile, share, and where the pixels begin.
std::tuple<int64_t, std::vector<std::tuple<int32_t, std::array<int32_t, 7>>>> halo_tiles(const ConvProblem& problem,
                                                                                         const KernelEntry& kernel,
                                                                                         const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloParams params = halo_launch(plan, problem).params;
  std::vector<std::tuple<int32_t, std::array<int32_t, 7>>> tiles;
  for (int32_t i = 0; i < params.tiles; ++i) {
    const Tile tile(params, i);
    tiles.emplace_back(tile.phase,
                       std::array{tile.group, tile.k_tile, tile.share, tile.n, tile.p, tile.q, tile.linear});
  }
  return {plan.grid, tiles};
}

int32_t halo_copy_warps(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  return halo_launch(plan_of(kernel, problem, device), problem).params.copy_warps;
}

// Which blocks of the reduction a tile of group 0 goes through: channels, part of the input and part of the filter.
std::vector<std::tuple<int32_t, int32_t, int32_t>> halo_blocks(const ConvProblem& problem, const KernelEntry& kernel,
                                                               const DeviceSpec& device) {
  const HaloParams params = halo_launch(plan_of(kernel, problem, device), problem).params;
  const Tile tile(params, 0);
  std::vector<std::tuple<int32_t, int32_t, int32_t>> blocks;
  for_each_halo(params, tile, [&](const TapGroup& taps, int c_block) {
    if (&taps != &params.group[params.phase[0].group_begin]) return;
    for (int32_t share = 0; share < static_cast<int32_t>(params.shares.divisor); ++share) {
      const HaloBlock block(params, Tile(params, share), c_block);
      if (block.in_group % params.groups != 0 || block.filter_group % params.groups != 0) {
        throw py::index_error("another group");
      }
      blocks.emplace_back(block.c_block, block.in_group / params.groups, block.filter_group / params.groups);
    }
  });
  if (!params.filter_resident) return blocks;
  // What a block of the reduction finds where it looks for its part of the filter: phase, channels and group.
  std::vector<std::tuple<int32_t, int32_t, int32_t>> stages;
  auto for_each_block = [&](auto f) {  // f(block, stages that it takes, what they should hold)
    for (int32_t phase = 0; phase < params.phase_count; ++phase) {
      Tile first = tile;
      first.phase = phase;
      for (int32_t i = 0; i < params.c_blocks; ++i) {
        const HaloBlock block(params, first, i);
        f(i, params.phase[phase], params.phase[phase].taps / kernel.config.as<HaloConfig>().columns,
          std::tuple{phase, block.c_block, block.filter_group});
      }
    }
  };
  for_each_block([&](int32_t i, const OutputPhase&, int32_t count, auto held) {
    if (fills_stages(params, i)) stages.insert(stages.end(), count, held);
  });
  if (static_cast<int32_t>(stages.size()) != params.b_stages) throw py::index_error("not as many stages");
  for_each_block([&](int32_t i, const OutputPhase& phase, int32_t count, auto held) {
    const int32_t first = resident_stage(params, phase, i) / kernel.config.as<HaloConfig>().columns;
    for (int32_t step = 0; step < count; ++step) {
      if (stages.at(first + step) != held) throw py::index_error("another part");
    }
  });
  return blocks;
}

// HaloStaging::kFloats: what lanes load of a tile's halos of planes and multiply, group 0.
template <int kDepth>
void float_products(const ConvProblem& p, const KernelEntry& kernel, const HaloParams& params, const Tile& tile,
                    const TapGroup& taps, Products& products) {
  using Fragment = FloatFragment<kDepth>;
  const int32_t channels = kernel.config.as<HaloConfig>().channels, pitch = params.raw.box_w;
  const int64_t filter_c = p.pass == Pass::kDgrad ? p.w_strides.n : p.w_strides.c;
  const FloatRows rows(params, tile, taps);
  for (int32_t c_block = 0; c_block < params.c_blocks; ++c_block) {
    std::vector<int64_t> halo(params.halo_rows * channels * pitch, kNothing);
    for (int32_t row = 0; row < params.halo_rows; ++row) {
      if (!rows.exists(row)) continue;
      if (rows.start(row) % 4 != 0) throw py::index_error("no column of TMA");
      for (int32_t i = 0; i < channels * pitch; ++i) {
        const int32_t c = c_block * channels + i / pitch, flat = rows.start(row) + i % pitch;
        const bool exists = c < params.c && flat >= 0 && flat < params.height * params.width;
        halo.at(row * channels * pitch + i) = exists ? tile.n * params.in_n + c * params.in_c + flat : kZero;
      }
    }
    for_each_float_padding(params, tile, rows, [&](int32_t row, int32_t first, int32_t count) {
      for (int32_t c = 0; c < channels; ++c) {
        if (first + count > pitch) throw py::index_error("clears another channel");
        std::fill_n(halo.begin() + (row * channels + c) * pitch + first, count, kZero);
      }
    });
    // Value i of each lane, for tap (r, s) of M-block `block`.
    auto multiply = [&](int32_t block, int32_t step, int32_t r, int32_t s, int32_t i) {
      std::vector<int> addresses;
      for (int32_t thread = 0; thread < 128; ++thread) {
        const Fragment fragment(thread / 32, thread % 32);
        const int32_t m = fragment.pixel + Fragment::pixels(i);
        const FloatPlace first = float_block(params, block), pixel = float_pixel(params, m);
        const int32_t row = first.row + pixel.row + r * taps.row_step;
        const int32_t column = first.column + pixel.column + s * taps.col_step;
        const int32_t channel = step * kDepth + fragment.channel + Fragment::channels(i);
        const int32_t at = (row * channels + channel) * pitch + column + rows.lead(row);
        addresses.push_back(4 * at);
        const int64_t target = output_element(params, tile, output_pixel(params, tile, block, m));
        if (target < 0) continue;
        const int64_t source = halo.at(at), c = c_block * channels + channel;
        if (source == kNothing || column + rows.lead(row) >= pitch) throw py::index_error("nothing staged");
        if (source == kZero) continue;
        const int64_t filter = (taps.r0 + r * taps.dr) * p.w_strides.h + (taps.s0 + s * taps.ds) * p.w_strides.w;
        products.emplace_back(source, filter + c * filter_c, target);
      }
      const std::vector<int> warp(addresses.begin(), addresses.begin() + 32);
      if (bank_turns(warp, 4) > 1) throw py::index_error("lanes wait for each other's banks");
    };
    for (int32_t block = 0; block < params.tile_pixels / 64; ++block) {
      for (int32_t step = 0; step < channels / kDepth; ++step) {
        for (int32_t tap = 0; tap < taps.rows * taps.cols; ++tap) {
          for (int32_t i = 0; i < Fragment::kValues; ++i) multiply(block, step, tap / taps.cols, tap % taps.cols, i);
        }
      }
    }
  }
}

// As the halo engine forms them: rows of matrix operands are pixels of a staged halo, shifted by the tap.
Products halo_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloLaunch launch = halo_launch(plan, problem);
  const HaloParams& params = launch.params;
  const bool folds = kernel.config.as<HaloConfig>().staging == HaloStaging::kFolded;
  const int32_t parts = kernel.config.as<HaloConfig>().parts_a_stage(),
                pattern = 8 * kernel.config.as<HaloConfig>().pixel_bytes();  // of swizzling
  const int32_t filter_bytes =
      parts * kernel.config.as<HaloConfig>().n() * kernel.config.as<HaloConfig>().pixel_bytes();
  const int32_t stages = params.a_stages * params.a_stage_bytes + params.b_stages * filter_bytes;
  const int32_t raw_bytes =
      kernel.config.as<HaloConfig>().staging == HaloStaging::kTransposed ? params.raw.stage_bytes : 0;
  if (params.a_stage_bytes % pattern != 0 || (parts > 1 && params.part_bytes % pattern != 0) ||
      filter_bytes % pattern != 0) {
    throw py::index_error("rows lie elsewhere in their pattern");
  }
  if (stages % 128 != 0 || (!params.raw.whole && (raw_bytes >> params.raw.phases_log2) % 128 != 0)) {
    throw py::index_error("TMA or the epilogue would meet no multiple of 128");
  }
  if (parts > 1 && parts * params.part_bytes > params.a_stage_bytes &&
      kernel.config.as<HaloConfig>().staging == HaloStaging::kTransposed) {
    throw py::index_error("parts overlap the next stage");
  }
  const Strides& w = problem.w_strides;
  const int64_t filter_c = problem.pass == Pass::kDgrad ? w.n : w.c;
  const int32_t channels = kernel.config.as<HaloConfig>().channels,
                pixel_bytes = kernel.config.as<HaloConfig>().pixel_bytes();
  const int32_t channels_log2 = std::countr_zero(static_cast<uint32_t>(channels));
  Products products;
  auto multiply = [&](const Tile& tile, const TapGroup& taps, const std::vector<int64_t>& halo, int32_t m) {
    const int32_t block = m / 64, row = m % 64;
    const int64_t target = output_element(params, tile, output_pixel(params, tile, block, row));
    if (target < 0) return;
    const int32_t first =
        block_offset(params, tile, block, pixel_bytes) + row / 8 * params.group_pitch + row % 8 * pixel_bytes;
    for (int32_t tap = 0; tap < taps.rows * taps.cols; ++tap) {
      const int32_t i = tap / taps.cols, j = tap % taps.cols;
      // Side by side on N, a column's sums are those of the pixel that it shifts to.
      const int32_t column = (block & ((1 << params.blocks_q_log2) - 1)) * params.block_q + row % 8;
      if (column + j % kernel.config.as<HaloConfig>().columns * params.column_step >= params.block_q
                                                                                          << params.blocks_q_log2 &&
          kernel.config.as<HaloConfig>().columns > 1) {
        throw py::index_error("no sums of this strip");
      }
      const int64_t source = halo.at((first + i * taps.row_step + j * taps.col_step) / pixel_bytes);
      if (source == kNothing) throw py::index_error("nothing staged");
      if (source == kZero) continue;
      if (folds) {
        const Fold& fold = launch.fold;
        auto filter = [&](int32_t c) -> int64_t {
          const FoldedChannel& channel = fold.channel[c];
          const int32_t r = fold.h.tap(taps.r0 + i * taps.dr, channel.h),
                        s = fold.w.tap(taps.s0 + j * taps.ds, channel.w);
          return fold.h.has_tap(r) && fold.w.has_tap(s) ? channel.c * w.c + r * w.h + s * w.w : -1;
        };
        const FoldedPixel pixel = folded_pixel(source, params.width, params.height);
        folded_products(problem, fold, pixel, 0, params.c, filter, target, products);
        continue;
      }
      const int32_t share = static_cast<int32_t>(params.part_blocks.divisor) * channels;
      for (int32_t at = tile.share * share; at < (tile.share + 1) * share; ++at) {
        const int32_t phases_log2 =
            kernel.config.as<HaloConfig>().operands == OperandForm::kHalf ? params.raw.phases_log2 : 0;
        const int32_t c = at - at % channels + staged_channel(phases_log2, channels_log2, at % channels);
        if (c >= params.c) continue;
        const int64_t in = in_tensor(problem, params, operand_of(kernel.config.as<HaloConfig>().operands), source, c);
        for (int32_t beside = 0; beside < columns_at_once(kernel.config.as<HaloConfig>().filter); ++beside) {
          const int32_t r = taps.r0 + i * taps.dr, s = taps.s0 + j * taps.ds + beside;
          if (s < 0 || s >= problem.s) continue;  // TMA brings zeros
          products.emplace_back(in, r * w.h + s * w.w + c * filter_c, in_planes(params.out_order, target + beside));
        }
      }
    }
  };
  auto walk_tiles = [&](auto walk) {
    for (; walk.more(); walk.next()) {
      const Tile tile(params, walk.index);
      if (tile.group != 0 || tile.k_tile != 0) continue;
      for_each_halo(params, tile, [&](const TapGroup& taps, int c_block) {
        if (c_block != 0) return;
        if (kernel.config.as<HaloConfig>().staging == HaloStaging::kFloats) {
          return kernel.config.as<HaloConfig>().operands != OperandForm::kTf32
                     ? float_products<16>(problem, kernel, params, tile, taps, products)
                     : float_products<8>(problem, kernel, params, tile, taps, products);
        }
        const HaloParams staged = folds ? counting_pixels(params) : params;
        const std::vector<int64_t> halo = staged_halo(staged, kernel.config.as<HaloConfig>(), tile, taps);
        for (int32_t m = 0; m < params.tile_pixels; ++m) multiply(tile, taps, halo, m);
      });
    }
  };
  const auto pipelines = static_cast<int32_t>(plan.grid * halo_pipelines(kernel.config.as<HaloConfig>().lines));
  for (int32_t i = 0; i < pipelines; ++i) {
    if (kernel.config.as<HaloConfig>().lines) {
      walk_tiles(TileWalk<true>(params, i, pipelines));
    } else {
      walk_tiles(TileWalk<false>(params, i, pipelines));
    }
  }
  return products;
}

// What a kernel that stores lines writes, filter by filter: first byte and number of bytes, by the same steps as its
// epilogue.
std::vector<std::tuple<int64_t, int64_t>> line_stores(const ConvProblem& problem, const KernelEntry& kernel,
                                                      const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloParams params = halo_launch(plan, problem).params;
  const auto bytes_each = static_cast<int32_t>(element_size(problem.dtype));
  std::vector<std::tuple<int64_t, int64_t>> stores;
  auto store = [&](int64_t at, int64_t bytes) {
    if (bytes > 0) stores.emplace_back(at, bytes);
  };
  const auto pipelines = static_cast<int32_t>(plan.grid * halo_pipelines(kernel.config.as<HaloConfig>().lines));
  for (int32_t pipeline = 0; pipeline < pipelines; ++pipeline) {
    std::vector<int32_t> waiting(params.k);  // bytes of each stream
    for (TileWalk<true> walk(params, pipeline, pipelines); walk.more(); walk.next()) {
      const Tile tile(params, walk.index);
      const StreamPart part(params, tile, walk, bytes_each);
      for (int32_t k = 0; k < params.k; ++k) {
        const int64_t at = bytes_each * (tile.n * params.out_n + tile.p * params.out_h + tile.q + k * params.out_k);
        const StreamLines lines(static_cast<uint32_t>(at), part.bytes);
        const int64_t line = at - lines.lead, rest = line + lines.whole * kLineBytes;
        if (!part.begins && lines.lead != waiting[k]) throw py::index_error("not where the last tile ended");
        const int64_t begin = part.begins ? at : line;
        if (lines.whole == 0 && part.begins) throw py::index_error("a run's first tile ends no line");
        for (int64_t i = begin; i < rest; i = i / kLineBytes * kLineBytes + kLineBytes) {
          store(i, kLineBytes - i % kLineBytes);
        }
        if (part.ends) store(rest, lines.rest);
        waiting[k] = lines.rest;
      }
    }
  }
  return stores;
}

// halo_packed_filter() where the input is folded.
std::tuple<std::vector<int64_t>, std::vector<int64_t>> folded_packed_filter(const ConvProblem& problem,
                                                                            const HaloConfig& config,
                                                                            const HaloLaunch& launch) {
  const HaloParams& params = launch.params;
  const Fold& fold = launch.fold;
  const int64_t channels = config.channels, step_size = config.block_k * channels, steps = params.steps_per_filter_tile;
  std::vector<int64_t> expected(params.k_tiles.divisor * steps * step_size, kZero), packed(expected.size(), kNothing);
  int64_t step = 0;
  auto expect = [&](const TapGroup& taps, int32_t c_block) {
    for (int32_t t = 0; t < taps.rows * taps.cols; ++t, ++step) {
      for (int64_t k = 0; k < problem.k; ++k) {
        for (int64_t c = 0; c < channels && c_block * channels + c < fold.channels; ++c) {
          const FoldedChannel& channel = fold.channel[c_block * channels + c];
          const int64_t r = (taps.r0 + t / taps.cols * taps.dr) * problem.stride.h + channel.h - fold.h.lead,
                        s = (taps.s0 + t % taps.cols * taps.ds) * problem.stride.w + channel.w - fold.w.lead;
          if (r < 0 || r >= problem.r || s < 0 || s >= problem.s) continue;
          const int64_t bytes = (k % config.block_k * channels + c) * 2,
                        swizzled = bytes ^ ((bytes >> 7 & (channels / 8 - 1)) << 4);
          const Strides& w = problem.w_strides;
          expected.at((k / config.block_k * steps + step) * step_size + swizzled / 2) =
              k * w.n + channel.c * w.c + r * w.h + s * w.w;
        }
      }
    }
  };
  for_each_halo(params, Tile(params, 0), expect);
  for (int32_t index = 0; index < params.pack.pieces; ++index) {
    const FoldedPackChunk chunk(params, index);
    for (int32_t i = 0; i < 8; ++i) {
      if (packed.at(chunk.at + i) != kNothing) throw py::index_error("packed twice");
      packed.at(chunk.at + i) = chunk.source(params.pack, fold, i);
    }
  }
  return {packed, expected};
}

// Whether so many bytes for what writes the filter to the workspace are nobody else's meanwhile.
bool prepares_in_its_room(const HaloParams& params, const HaloConfig& config, int32_t bytes) {
  const int32_t begin = params.prepare_buffer, end = begin + bytes;
  if (params.prepare != Prepare::kFilter) return end <= params.data_bytes;
  const int32_t halos = params.a_stages * params.a_stage_bytes;  // which are staged
  return begin >= halos && end <= halos + params.b_stages * config.parts_a_stage() * config.n() * config.pixel_bytes();
}

// The packed filter as elements of the filter, kZero or kNothing, by the same steps as the kernel that packs it; empty
// if none is packed. Beside it what it should be, by the order in which tiles use it.
std::tuple<std::vector<int64_t>, std::vector<int64_t>> halo_packed_filter(const ConvProblem& problem,
                                                                          const KernelEntry& kernel,
                                                                          const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloLaunch launch = halo_launch(plan, problem);
  const HaloParams& params = launch.params;
  if (params.filter_direct) return {};
  if (kernel.config.as<HaloConfig>().staging == HaloStaging::kFolded)
    return folded_packed_filter(problem, kernel.config.as<HaloConfig>(), launch);
  const PackParams& pack = params.pack;
  const int64_t channels = int64_t{1} << pack.channels_log2, block_k = int64_t{1} << pack.block_k_log2;
  const int64_t step_size = block_k * channels, all_taps = pack.step_taps.divisor,
                columns = columns_at_once(kernel.config.as<HaloConfig>().filter);
  const int64_t tiles = problem.groups * params.k_tiles.divisor;
  const Strides& w = problem.w_strides;
  const int64_t row_stride = problem.pass == Pass::kDgrad ? w.c : w.n,
                col_stride = problem.pass == Pass::kDgrad ? w.n : w.c;
  std::vector<int64_t> expected(tiles * params.steps_per_filter_tile * step_size, kZero),
      packed(expected.size(), kNothing);
  const int32_t c_blocks = params.c_blocks * static_cast<int32_t>(params.shares.divisor);
  std::vector<int64_t> step_of(c_blocks * all_taps, kNothing), filter_taps(all_taps);
  for (int32_t p = 0; p < params.phase_count; ++p) {
    int64_t step = params.phase[p].first_step;
    for (int32_t c_block = 0; c_block < c_blocks; ++c_block) {
      for (int32_t g = params.phase[p].group_begin; g < params.phase[p].group_end; ++g) {
        const TapGroup& taps = params.group[g];
        for (int32_t t = 0; t < taps.rows * taps.cols; ++t, ++step) {
          const int32_t r = taps.r0 + t / taps.cols * taps.dr, s0 = taps.s0 + t % taps.cols * taps.ds;
          for (int32_t beside = 0; beside < columns; ++beside) {
            const int32_t tap = step_tap(pack, r, s0 + beside);
            step_of.at(c_block * all_taps + tap) = step, filter_taps.at(tap) = filter_tap(pack, r, s0 + beside);
          }
          for (int64_t i = 0; i < tiles * step_size; ++i) {
            const int64_t tile = i / step_size, row = i % step_size / channels, c = i % channels;
            const int64_t k = (tile % params.k_tiles.divisor * block_k + row) / columns, s = s0 + row % columns;
            const int64_t col = c_block * channels +
                                staged_channel(params.raw.phases_log2, pack.channels_log2, static_cast<int32_t>(c));
            const int64_t bytes = (row * channels + c) * 2, swizzled = bytes ^ ((bytes >> 7 & (channels / 8 - 1)) << 4);
            if (k < pack.rows && col < pack.cols && s >= 0 && s < problem.s) {
              expected.at((tile * params.steps_per_filter_tile + step) * step_size + swizzled / 2) =
                  tile / params.k_tiles.divisor * pack.group + k * row_stride + col * col_stride + r * pack.r +
                  s * pack.s;
            }
          }
        }
      }
    }
  }
  const auto segments = static_cast<int32_t>(pack.segments.divisor), size = static_cast<int32_t>(pack.segment.divisor);
  const int32_t pack_bytes = pack_table_bytes(static_cast<int32_t>(all_taps)) + pack.at_once * pack.piece_bytes;
  if (pack.at_once < 1 || !prepares_in_its_room(params, kernel.config.as<HaloConfig>(), pack_bytes))
    throw py::index_error("does not fit");
  if (pack.copied && pack.at_once * segments > kPackCopies * 32 * params.prepare_warps) {
    throw py::index_error("left out");
  }
  if (params.prepare == Prepare::kFilter && params.out_order.units > 0)
    throw py::index_error("blocks meet out of turn");
  for (int32_t index = 0; index < pack.pieces; ++index) {
    const PackPiece piece(pack, index);
    std::vector<int64_t> smem(pack.piece_bytes / 2, kNothing);
    for (int32_t outer = 0; outer < segments; ++outer) {
      const int32_t exist = piece.segment_size(pack, outer), slot = segment_slot(pack, outer);
      const int64_t source = piece.segment_source(pack, outer);
      if (pack.copied && (slot % 8 != 0 || exist % 8 != 0 || (exist > 0 && source % 8 != 0))) {
        throw py::index_error("cannot be copied");
      }
      for (int32_t at = 0; at < std::min(exist, size); ++at) {
        if (smem.at(slot + at) != kNothing) throw py::index_error("read twice");
        smem.at(slot + at) = source + pack_source(pack, at);
        if (pack.copied && pack_source(pack, at) != at) throw py::index_error("not contiguous");
      }
    }
    for (int32_t c = 0; c < static_cast<int32_t>(pack.chunks.divisor); ++c) {
      const PackChunk chunk(pack, piece, c, static_cast<int32_t>(columns));
      const int64_t step = step_of.at(piece.c_block * all_taps + chunk.tap), tap = filter_taps.at(chunk.tap);
      for (int32_t i = 0; i < 8 && step != kNothing; ++i) {
        int64_t& to = packed.at((piece.filter_tile * params.steps_per_filter_tile + step) * step_size + chunk.at + i);
        if (to != kNothing) throw py::index_error("packed twice");
        const bool exists = tap >= 0 && i < chunk.exist(pack, piece);
        to = exists ? smem.at(chunk.slot(pack, i, static_cast<int32_t>(tap))) : kZero;
      }
    }
  }
  return {packed, expected};
}

}  // namespace

void check_halo_copies(const Plan& plan, const ConvProblem& problem) {
  const HaloConfig& config = plan.kernel->config.as<HaloConfig>();
  const HaloLaunch launch = halo_launch(plan, problem);
  const int64_t bytes = element_size(launch.operand);
  for (int i = 0; i < launch.in_maps; ++i) check_copy(launch.in_map[i], element_size(launch.in_values), 0);
  const HaloParams& params = launch.params;
  const bool all_split = params.prepare == Prepare::kFilter || params.prepare_warps == plan.block_threads / 32;
  if (params.filter_split.parts > 0 && (params.prepare_warps < 1 || !all_split ||
                                        !prepares_in_its_room(params, config, params.prepare_warps * kReorderBytes))) {
    throw py::index_error("no room to split");
  }
  if (params.a_stages + params.b_stages + params.raw.stages > kMaxHaloStages) {
    throw py::index_error("no room for the barriers");
  }
  if (config.staging == HaloStaging::kTma) {
    const TensorMapSpec& map = launch.in_map[0];
    auto pixels = [&](int i) { return (map.box[i] - 1) / map.step[i] + 1; };  // of a copy, along a dimension
    const int64_t halo = int64_t{params.halo_rows} * params.halo_pitch;
    if (params.loads * pixels(2) * pixels(3) != halo) throw py::index_error("copies are of another halo");
    if (halo * config.pixel_bytes() > params.a_stage_bytes) throw py::index_error("no room for the halo");
  }
  if (launch.params.filter_direct) check_copy(launch.filter_map, bytes, 0);
  if (launch.planes.size[0] > 0) check_copy(launch.planes, bytes, 0);
  if (launch.out_planes.size[0] > 0) check_copy(launch.out_planes, bytes, 0);
}

void bind_halo(py::module_& m) {
  m.def("halo_products", unless_refused(halo_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("halo_tiles", unless_refused(halo_tiles), "problem"_a, "kernel"_a, "device"_a);
  m.def("halo_copy_warps", unless_refused(halo_copy_warps), "problem"_a, "kernel"_a, "device"_a);
  m.def("halo_blocks", unless_refused(halo_blocks), "problem"_a, "kernel"_a, "device"_a);
  m.def("line_stores", unless_refused(line_stores), "problem"_a, "kernel"_a, "device"_a);
  m.def(
      "pixel_rows",
      [](int vector, int together, int block_k, int element_bytes, bool narrow, int across_log2) {
        const Turned turned = pixel_rows(vector, together, block_k, element_bytes, narrow, across_log2);
        return std::tuple{turned.stored, turned.turns};
      },
      "vector"_a, "together"_a, "block_k"_a, "element_bytes"_a, "narrow"_a, "across_log2"_a);
  m.def(
      "channel_rows",
      [](int block_k, int element_bytes) {
        const Turned turned = channel_rows(block_k, element_bytes);
        return std::tuple{turned.stored, turned.turns};
      },
      "block_k"_a, "element_bytes"_a);
  m.def("stream_turns", &stream_turns, "plane"_a, "element_bytes"_a);
  m.def("halo_packed_filter", unless_refused(halo_packed_filter), "problem"_a, "kernel"_a, "device"_a);
}

}  // namespace fastconv
