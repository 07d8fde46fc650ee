#include "fastconv/tile/plan_split.h"

#include <algorithm>
#include <initializer_list>

#include "fastconv/core/integers.h"
#include "fastconv/tile/cost.h"
#include "fastconv/tile/plan_reorder.h"

namespace fastconv {
namespace {

// Counters of rows and units, and what is added to them, stay within 32 bits.
constexpr double kMaxCount = 1 << 30;

// A level of rows as the tensor has it, outermost first.
struct Level {
  int64_t size, from, to;
};
struct Levels {
  Level image{1, 0, 0}, line{1, 0, 0}, column{1, 0, 0};
};

int64_t chunks_of(int64_t channels, Operand operand) {
  return split_channels(channels, operand) / split_chunk(operand);
}

int32_t unit_channels_log2(int64_t channels) { return channels <= 8 ? 3 : channels <= 16 ? 4 : kSplitChannelsLog2; }
int64_t channel_blocks(int64_t channels) { return ceil_div(channels, int64_t{1} << unit_channels_log2(channels)); }

bool countable(double rows, int64_t groups, int64_t channels) {
  return channels < kMaxExtent &&
         rows * static_cast<double>(groups) * static_cast<double>(channel_blocks(channels)) < kMaxCount;
}

// Levels of one row disappear, and those that follow each other without a gap become one.
Levels merged(const Levels& levels) {
  Levels out;
  Level* const to[] = {&out.column, &out.line, &out.image};
  int count = 0;
  for (const Level* level : {&levels.column, &levels.line, &levels.image}) {
    if (level->size == 1) continue;
    Level* inner = count == 0 ? nullptr : to[count - 1];
    if (inner != nullptr && level->from == inner->size * inner->from && level->to == inner->size * inner->to) {
      inner->size *= level->size;
    } else {
      *to[count++] = *level;
    }
  }
  return out;
}

// Contiguous rows become the innermost level.
Levels along_rows(Levels levels) {
  for (Level* level : {&levels.line, &levels.image}) {
    if (level->size > 1 && level->from == 1 && levels.column.from != 1) std::swap(*level, levels.column);
  }
  return levels;
}

// Values of `run` that can be read at once, if all others lie at multiples of that.
int32_t vector_of(int64_t run, std::initializer_list<Level> others, int32_t align, int element) {
  for (const int32_t vector : {4, 2}) {
    auto whole = [&](const Level& level) { return level.size == 1 || level.from % vector == 0; };
    if (align >= element * vector && run % vector == 0 && std::all_of(others.begin(), others.end(), whole))
      return vector;
  }
  return 1;
}

// `levels` and `groups` as they are written; `channels` of a group.
Split split_of(Levels levels, const Level& groups, const Level& channels, int32_t align, Operand operand, int parts,
               int element) {
  constexpr int64_t kFewUnits = 1024, kFewRows = 16;  // warps that the chip runs at once, nearly
  levels = merged(levels);
  const Level &image = levels.image, &line = levels.line, &column = levels.column;
  const bool fours = vector_of(channels.size, {image, line, column, groups}, align, element) == 4;
  // A few channels are not worth a lane each.
  const bool along_channels = channels.from == 1 && (fours || channels.size >= 8);
  int32_t vector = fours ? 4 : 1;
  if (!along_channels) {
    levels = merged(along_rows(levels));
    vector = column.from == 1 ? vector_of(column.size, {image, line, groups, channels}, align, element) : 1;
  }
  Split split{};
  split.image = {image.from, image.to}, split.line = {line.from, line.to}, split.column = {column.from, column.to};
  split.group = {groups.from, groups.to};
  split.stride_c = used_stride(channels.from, channels.size);
  split.channels = static_cast<int32_t>(channels.size);
  split.parts = parts;
  split.row_count = static_cast<int32_t>(image.size * line.size * column.size);
  split.lines = FastDivmod(line.size), split.columns = FastDivmod(column.size);
  const int64_t filled = split_channels(channels.size, operand);
  split.channels_log2 = unit_channels_log2(filled);
  split.chunk_channels = static_cast<int32_t>(filled);
  split.channel_blocks = FastDivmod(channel_blocks(filled)), split.groups = FastDivmod(groups.size);
  split.read = along_channels ? SplitRead::kChannels : SplitRead::kRows;
  split.vector = vector;
  auto units = [&](int64_t rows) { return ceil_div(split.row_count, rows) * groups.size * channel_blocks(filled); };
  int64_t rows = kSplitValues >> split.channels_log2;
  while (rows > kFewRows && units(rows) < kFewUnits) rows /= 2;
  split.unit_rows = static_cast<int32_t>(rows);
  split.units = static_cast<int32_t>(units(rows));
  return split;
}

// The filter's rows, and their channels, as the pass has them.
struct FilterRows {
  Level rows, channels;
};
FilterRows filter_rows(const ConvProblem& p) {
  const Level k{p.k_per_group(), p.w_strides.n, 0}, c{p.c_per_group(), p.w_strides.c, 0};
  return p.pass == Pass::kDgrad ? FilterRows{c, k} : FilterRows{k, c};
}

int64_t row_chunks(const Side& side, int64_t groups, Operand operand, int parts) {
  return parts * groups * chunks_of(side.c, operand);
}

}  // namespace

int split_parts(Precision precision) { return precision == Precision::kIeee ? 3 : 2; }

int64_t split_channels(int64_t channels, Operand operand) { return round_up(channels, 2 * split_chunk(operand)); }

bool splittable(const Side& side, int64_t groups) {
  const double rows = static_cast<double>(side.n) * static_cast<double>(side.h) * static_cast<double>(side.w);
  return countable(rows, groups, side.c);
}

Split make_split(const Side& side, int64_t groups, Operand operand, int parts, int element) {
  const int64_t chunks = chunks_of(side.c, operand), row = row_chunks(side, groups, operand, parts);
  const Levels levels{{side.n, side.stride.n, side.h * side.w * row},
                      {side.h, side.stride.h, side.w * row},
                      {side.w, side.stride.w, row}};
  Split split = split_of(levels, {groups, side.c * side.stride.c, chunks}, {side.c, side.stride.c, 0}, side.align,
                         operand, parts, element);
  split.part_pitch = groups * chunks;
  return split;
}

Side split_side(const Side& side, int64_t groups, Operand operand, int parts) {
  const int64_t row = row_chunks(side, groups, operand, parts) * split_chunk(operand);
  return {side.n, side.c, side.h, side.w, {row * side.w * side.h, 1, row * side.w, row}, 128};
}

int64_t split_bytes(const Side& side, int64_t groups, Operand operand, int parts) {
  return round_up(side.n * side.h * side.w * row_chunks(side, groups, operand, parts) * kSplitChunkBytes, 128);
}

bool filter_splittable(const ConvProblem& p) {
  const auto [rows, channels] = filter_rows(p);
  const double all_rows = static_cast<double>(rows.size) * static_cast<double>(p.r) * static_cast<double>(p.s);
  return countable(all_rows, p.groups, channels.size);
}

Split make_filter_split(const ConvProblem& p, Operand operand, int parts) {
  const auto [rows, channels] = filter_rows(p);
  const int64_t chunks = chunks_of(channels.size, operand);
  const Levels levels{
      {rows.size, rows.from, p.r * p.s * chunks}, {p.r, p.w_strides.h, p.s * chunks}, {p.s, p.w_strides.w, chunks}};
  const Level groups{p.groups, p.k_per_group() * p.w_strides.n, rows.size * p.r * p.s * chunks};
  Split split = split_of(levels, groups, channels, p.w_align, operand, parts, static_cast<int>(element_size(p.dtype)));
  split.part_pitch = groups.size * groups.to;
  return split;
}

Strides filter_split_strides(const ConvProblem& p, Operand operand) {
  const int64_t of_tap = split_channels(filter_rows(p).channels.size, operand);
  return {p.r * p.s * of_tap, 1, p.s * of_tap, of_tap};
}

int64_t filter_split_bytes(const ConvProblem& p, Operand operand, int parts) {
  const auto [rows, channels] = filter_rows(p);
  const int64_t all_rows = p.groups * rows.size * p.r * p.s;
  return round_up(parts * all_rows * chunks_of(channels.size, operand) * kSplitChunkBytes, 128);
}

double split_us(const Side& side, int64_t groups, Operand operand, int parts, double share, const DeviceSpec& device) {
  const double read = 4. * static_cast<double>(side.n * side.h * side.w) * static_cast<double>(side.c * groups);
  return cost::reorder::kFixedUs +
         rewrite_us(read, static_cast<double>(split_bytes(side, groups, operand, parts)), share, device);
}

}  // namespace fastconv
