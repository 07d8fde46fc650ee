#include "fastconv/planner/registry.h"

#include <vector>

#include "fastconv/families/cpu/plan.h"
#include "fastconv/families/depthwise/any_plan.h"
#include "fastconv/families/depthwise/banded_plan.h"
#include "fastconv/families/depthwise/cross_plan.h"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/families/depthwise/pairs_plan.h"
#include "fastconv/families/depthwise/plan.h"
#include "fastconv/families/few_channels/embed_plan.h"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/families/few_channels/quads_wgrad_plan.h"
#include "fastconv/families/few_channels/ready_quads_plan.h"
#include "fastconv/families/few_channels/stem_plan.h"
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/planes_plan.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/families/implicit_gemm/direct_plan.h"
#include "fastconv/families/implicit_gemm/im2col_plan.h"
#include "fastconv/families/implicit_gemm/mma_config.h"
#include "fastconv/families/implicit_gemm/mma_plan.h"
#include "fastconv/families/implicit_gemm/tile_config.h"
#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/families/space_to_depth/subpixel_plan.h"
#include "fastconv/families/wgrad/plan.h"

namespace fastconv {
namespace {

std::vector<KernelEntry> build_table() {
  std::vector<KernelEntry> table;
  int line = 0;
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes) \
  table.push_back({#name,                                                    \
                   Pass::pass,                                               \
                   true,                                                     \
                   {m, n, kTileDepth},                                       \
                   direct_why_not,                                           \
                   direct_plan,                                              \
                   VectorReads::reads,                                       \
                   thread_m,                                                 \
                   thread_n,                                                 \
                   dtypes,                                                   \
                   KernelFamily::kDirect,                                    \
                   line++});
#include "fastconv/families/implicit_gemm/direct.def"
#undef FASTCONV_KERNEL
  line = 0;
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes) \
  table.push_back({#name,                                                    \
                   Pass::pass,                                               \
                   true,                                                     \
                   {m, n, kTileDepth},                                       \
                   im2col_why_not,                                           \
                   im2col_plan,                                              \
                   VectorReads::reads,                                       \
                   thread_m,                                                 \
                   thread_n,                                                 \
                   dtypes,                                                   \
                   KernelFamily::kIm2col,                                    \
                   line++});
#include "fastconv/families/implicit_gemm/im2col.def"
#undef FASTCONV_KERNEL
  line = 0;
  auto add_mma = [&](const char* name, Pass pass, VectorReads reads, MmaConfig config, unsigned dtypes) {
    config.element = dtypes == kHalf ? 2 : 4;
    KernelEntry entry{name, pass, true, {config.m, config.n, config.depth()}, mma_why_not, mma_plan, reads};
    entry.dtypes = dtypes, entry.family = KernelFamily::kMma, entry.line = line++;
    table.push_back(entry);
  };
#define MMA_KERNEL(name, pass, reads, m, n, dtypes) add_mma(#name, Pass::pass, VectorReads::reads, {m, n}, dtypes);
#include "fastconv/families/implicit_gemm/mma.def"
#undef MMA_KERNEL
  line = 0;
  auto add_depthwise = [&](const char* name, Pass pass, DepthwiseConfig config, unsigned dtypes) {
    if (!config.computes(pass)) return;
    KernelEntry entry{
        name,          pass, true, {config.columns, config.channels(), config.taps * config.taps_w}, depthwise_why_not,
        depthwise_plan};
    entry.dtypes = dtypes, entry.family = KernelFamily::kDepthwise, entry.line = line, entry.depthwise = config;
    table.push_back(entry);
  };
#define DEPTHWISE_KERNEL(name, dtypes, kind, taps, stride, lanes, ...)                          \
  {                                                                                             \
    const DepthwiseConfig config{DepthwiseKind::kind, taps, stride, Lanes::lanes, __VA_ARGS__}; \
    add_depthwise("depthwise_fprop_" #name, Pass::kFprop, config, dtypes);                      \
    add_depthwise("depthwise_dgrad_" #name, Pass::kDgrad, config, dtypes);                      \
    add_depthwise("depthwise_wgrad_" #name, Pass::kWgrad, config, dtypes);                      \
    ++line;                                                                                     \
  }
#include "fastconv/families/depthwise/kernels.def"
#undef DEPTHWISE_KERNEL
  line = 0;
  auto add_depthwise_any = [&](const char* name, Pass pass, DepthwiseAnyConfig config, unsigned dtypes) {
    KernelEntry entry{name, pass, true, {config.rows, config.columns, 1}, depthwise_any_why_not, depthwise_any_plan};
    entry.dtypes = dtypes, entry.family = KernelFamily::kDepthwiseAny, entry.line = line, entry.depthwise_any = config;
    table.push_back(entry);
  };
#define DEPTHWISE_ANY_KERNEL(name, rows, columns, dtypes)                                 \
  add_depthwise_any("depthwise_any_fprop_" #name, Pass::kFprop, {rows, columns}, dtypes); \
  add_depthwise_any("depthwise_any_dgrad_" #name, Pass::kDgrad, {rows, columns}, dtypes); \
  add_depthwise_any("depthwise_any_wgrad_" #name, Pass::kWgrad, {rows, columns}, dtypes), ++line;
#include "fastconv/families/depthwise/any.def"
#undef DEPTHWISE_ANY_KERNEL
  line = 0;
  auto add_banded = [&](const char* name, Pass pass, DepthwiseBandedConfig config, unsigned dtypes) {
    if (!config.computes(pass)) return;
    KernelEntry entry{name,
                      pass,
                      true,
                      {kBandedTile, kBandedBlock, std::max(1, config.taps) * config.window()},
                      depthwise_banded_why_not,
                      depthwise_banded_plan};
    entry.dtypes = dtypes, entry.family = KernelFamily::kDepthwiseBanded, entry.line = line;
    entry.depthwise_banded = config;
    table.push_back(entry);
  };
#define DEPTHWISE_BANDED_KERNEL(name, kind, taps, stride, steps, vector, ahead, warps, dtypes)          \
  {                                                                                                     \
    const DepthwiseBandedConfig config{DepthwiseKind::kind, taps, stride, steps, vector, ahead, warps}; \
    add_banded("depthwise_banded_fprop_" #name, Pass::kFprop, config, dtypes);                          \
    add_banded("depthwise_banded_dgrad_" #name, Pass::kDgrad, config, dtypes);                          \
    add_banded("depthwise_banded_wgrad_" #name, Pass::kWgrad, config, dtypes);                          \
    ++line;                                                                                             \
  }
#include "fastconv/families/depthwise/banded.def"
#undef DEPTHWISE_BANDED_KERNEL
  line = 0;
  auto add_diagonal = [&](const char* name, Pass pass, DepthwiseDiagonalConfig config, unsigned dtypes) {
    if (!config.computes(pass)) return;
    const int32_t positions = config.read_positions() * config.reads();
    KernelEntry entry{name,
                      pass,
                      true,
                      {kChunk, kDiagonalColumns, config.taps * positions},
                      pass == Pass::kWgrad ? depthwise_diagonal_wgrad_why_not : depthwise_diagonal_why_not,
                      pass == Pass::kWgrad ? depthwise_diagonal_wgrad_plan : depthwise_diagonal_plan};
    entry.dtypes = dtypes, entry.family = KernelFamily::kDepthwiseDiagonal, entry.line = line;
    entry.depthwise_diagonal = config;
    table.push_back(entry);
  };
#define DEPTHWISE_DIAGONAL_KERNEL(name, kind, taps, stride, ahead, warps, box_rows, chunks, dtypes)             \
  {                                                                                                             \
    const DepthwiseDiagonalConfig config{DepthwiseKind::kind,     taps, stride, ahead, warps, box_rows, chunks, \
                                         (dtypes) == kF32 ? 4 : 2};                                             \
    add_diagonal("depthwise_diagonal_fprop_" #name, Pass::kFprop, config, dtypes);                              \
    add_diagonal("depthwise_diagonal_dgrad_" #name, Pass::kDgrad, config, dtypes);                              \
    add_diagonal("depthwise_diagonal_wgrad_" #name, Pass::kWgrad, config, dtypes);                              \
    ++line;                                                                                                     \
  }
#include "fastconv/families/depthwise/diagonal.def"
#undef DEPTHWISE_DIAGONAL_KERNEL
  line = 0;
  auto add_pairs = [&](const char* name, Pass pass, DepthwisePairsConfig config) {
    const TileShape tile{kPairsChannels, kRuns * kRunTargets, config.taps * kRunPositions};
    KernelEntry entry{name, pass, true, tile, depthwise_pairs_why_not, depthwise_pairs_plan};
    entry.dtypes = kHalf, entry.family = KernelFamily::kDepthwisePairs, entry.line = line;
    entry.depthwise_pairs = config;
    table.push_back(entry);
  };
#define DEPTHWISE_PAIRS_KERNEL(name, taps)                         \
  add_pairs("depthwise_pairs_fprop_" #name, Pass::kFprop, {taps}); \
  add_pairs("depthwise_pairs_dgrad_" #name, Pass::kDgrad, {taps}), ++line;
#include "fastconv/families/depthwise/pairs.def"
#undef DEPTHWISE_PAIRS_KERNEL
  line = 0;
  auto add_cross = [&](const char* name, DepthwiseCrossConfig config) {
    const TileShape tile{kCrossSourceRows, kCrossTargetRows, kCrossColumns};
    KernelEntry entry{name, Pass::kWgrad, true, tile, depthwise_cross_why_not, depthwise_cross_plan};
    entry.dtypes = kHalf, entry.family = KernelFamily::kDepthwiseCross, entry.line = line++;
    entry.depthwise_cross = config;
    table.push_back(entry);
  };
#define DEPTHWISE_CROSS_KERNEL(name, taps, stride) add_cross("depthwise_cross_wgrad_" #name, {taps, stride});
#include "fastconv/families/depthwise/cross.def"
#undef DEPTHWISE_CROSS_KERNEL
  line = 0;
  auto add_halo = [&](const char* name, Pass pass, HaloConfig config) {
    if (!config.computes(pass)) return;
    table.push_back({name,
                     pass,
                     true,
                     {128 * config.m_blocks, config.n(), config.channels},
                     halo_why_not,
                     halo_plan,
                     VectorReads::kScalar,
                     0,
                     0,
                     config.operands == OperandForm::kHalf ? kHalf : kF32,
                     KernelFamily::kHalo,
                     line,
                     config});
  };
#define HALO_KERNEL(name, k, m, c, staging, filter, columns, lines, operands)                                          \
  {                                                                                                                    \
    const HaloConfig config{k, m, c, HaloStaging::staging, FilterTile::filter, columns, lines, OperandForm::operands}; \
    add_halo("halo_fprop_" #name, Pass::kFprop, config);                                                               \
    add_halo("halo_dgrad_" #name, Pass::kDgrad, config);                                                               \
    ++line;                                                                                                            \
  }
#include "fastconv/families/halo/kernels.def"
#undef HALO_KERNEL
  line = 0;
  auto add_wgrad = [&](const char* name, WgradConfig config) {
    KernelEntry entry{name, Pass::kWgrad, true, {64 * config.slots(), config.n(), 16}, wgrad_why_not, wgrad_plan};
    entry.dtypes = config.operands == OperandForm::kHalf ? kHalf : kF32, entry.family = KernelFamily::kWgrad,
    entry.line = line++, entry.wgrad = config;
    table.push_back(entry);
  };
#define WGRAD_KERNEL(name, channels, blocks, units, warpgroups, staging, operands) \
  add_wgrad("sm90_wgrad_" #name, {channels, blocks, units, warpgroups, WgradStaging::staging, OperandForm::operands});
#include "fastconv/families/wgrad/kernels.def"
#undef WGRAD_KERNEL
  line = 0;
  auto add_grouped = [&](const char* name, Pass pass, GroupedConfig config, unsigned dtypes) {
    const bool wgrad = pass == Pass::kWgrad;
    KernelEntry entry{name,
                      pass,
                      true,
                      {config.unit_pixels(), config.filters, config.chunk()},
                      wgrad ? grouped_wgrad_why_not : grouped_why_not,
                      wgrad ? grouped_wgrad_plan : grouped_plan};
    entry.dtypes = dtypes, entry.family = KernelFamily::kGrouped, entry.line = line, entry.grouped = config;
    table.push_back(entry);
  };
#define GROUPED_KERNEL(name, operands, filters, dtypes)                                            \
  add_grouped("grouped_fprop_" #name, Pass::kFprop, {GroupedOperands::operands, filters}, dtypes); \
  add_grouped("grouped_dgrad_" #name, Pass::kDgrad, {GroupedOperands::operands, filters}, dtypes); \
  add_grouped("grouped_wgrad_" #name, Pass::kWgrad, {GroupedOperands::operands, filters}, dtypes), ++line;
#include "fastconv/families/grouped/kernels.def"
#undef GROUPED_KERNEL
  line = 0;
  auto add_planes = [&](const char* name, GroupedPlanesConfig config, unsigned dtypes) {
    const TileShape tile{kPlanes, kPlanes * kPlanesTaps * kPlanesTaps, kPlanesColumns};
    KernelEntry entry{name, Pass::kWgrad, true, tile, grouped_planes_why_not, grouped_planes_plan};
    entry.dtypes = dtypes, entry.family = KernelFamily::kGroupedPlanes, entry.line = line++;
    entry.grouped_planes = config;
    table.push_back(entry);
  };
#define GROUPED_PLANES_KERNEL(name, stride, warps, dtypes) \
  add_planes("grouped_planes_wgrad_" #name, {stride, warps}, dtypes);
#include "fastconv/families/grouped/planes.def"
#undef GROUPED_PLANES_KERNEL
  line = 0;
  auto add_stem = [&](const char* name, Pass pass, StemConfig config) {
    const bool wgrad = pass == Pass::kWgrad;
    const TileShape tile = wgrad ? TileShape{config.filters, config.unit_taps(), kStemStep}
                                 : TileShape{config.unit_pixels(), config.filters, kStemStep};
    KernelEntry entry{
        name, pass, true, tile, wgrad ? stem_wgrad_why_not : stem_why_not, wgrad ? stem_wgrad_plan : stem_plan};
    entry.dtypes = kF32, entry.family = KernelFamily::kStem, entry.line = line, entry.stem = config;
    table.push_back(entry);
  };
#define STEM_KERNEL(name, parts, filters, operand)                                 \
  add_stem("stem_fprop_" #name, Pass::kFprop, {parts, filters, Operand::operand}); \
  add_stem("stem_wgrad_" #name, Pass::kWgrad, {parts, filters, Operand::operand}), ++line;
#include "fastconv/families/few_channels/stem.def"
#undef STEM_KERNEL
  line = 0;
#define QUADS_KERNEL(name, channels_inner, steps, operands, squares, types)                                   \
  {                                                                                                           \
    const int32_t pixels = quads_pixels(QuadsOperands::operands);                                             \
    const TileShape tile =                                                                                    \
        squares ? TileShape{kQuadsSquare * kQuadsSquare, kQuadsSquareFilters, kQuadsStepTaps * kQuadChannels} \
                : TileShape{pixels, kQuadsSet, kQuadsStepTaps * kQuadChannels};                               \
    KernelEntry entry{"quads_fprop_" #name, Pass::kFprop, true, tile, quads_why_not, quads_plan};             \
    entry.dtypes = types, entry.family = KernelFamily::kQuads, entry.line = line++;                           \
    entry.quads = {channels_inner, steps, QuadsOperands::operands, squares};                                  \
    table.push_back(entry);                                                                                   \
  }
#include "fastconv/families/few_channels/quads.def"
#undef QUADS_KERNEL
  line = 0;
#define READY_QUADS_KERNEL(name, steps)                                                                             \
  {                                                                                                                 \
    const TileShape tile{kReadyPixels, kQuadsSet, kQuadsStepTaps * kQuadChannels};                                  \
    KernelEntry entry{"ready_quads_fprop_" #name, Pass::kFprop, true, tile, ready_quads_why_not, ready_quads_plan}; \
    entry.dtypes = kHalf, entry.family = KernelFamily::kReadyQuads, entry.line = line++;                            \
    entry.ready_quads = {steps};                                                                                    \
    table.push_back(entry);                                                                                         \
  }
#include "fastconv/families/few_channels/ready_quads.def"
#undef READY_QUADS_KERNEL
  line = 0;
#define QUADS_WGRAD_KERNEL(name, channels_inner, channels)                                                    \
  {                                                                                                           \
    const TileShape tile{kQuadsWgradFilters, 8 * channels, kQuadsWgradStep};                                  \
    KernelEntry entry{"quads_wgrad_" #name, Pass::kWgrad, true, tile, quads_wgrad_why_not, quads_wgrad_plan}; \
    entry.dtypes = kHalf, entry.family = KernelFamily::kQuadsWgrad, entry.line = line++;                      \
    entry.quads_wgrad = {channels_inner, channels};                                                           \
    table.push_back(entry);                                                                                   \
  }
#include "fastconv/families/few_channels/quads_wgrad.def"
#undef QUADS_WGRAD_KERNEL
  auto add_embed = [&](const char* name, Pass pass, EmbedConfig config, unsigned types) {
    const TileShape tile{kEmbedUnitPixels, kEmbedUnitFilters, kEmbedStepChunks * kEmbedChunk};
    KernelEntry entry{name, pass, true, tile, embed_why_not, embed_plan};
    entry.dtypes = types, entry.family = KernelFamily::kEmbed, entry.line = line, entry.embed = config;
    table.push_back(entry);
  };
  line = 0;
#define EMBED_KERNEL(name, parts, channels_inner, types)                                              \
  add_embed("embed_fprop_" #name, Pass::kFprop, {parts, channels_inner}, types);                      \
  if ((types) == kF32) add_embed("embed_wgrad_" #name, Pass::kWgrad, {parts, channels_inner}, types); \
  ++line;
#include "fastconv/families/few_channels/embed.def"
#undef EMBED_KERNEL
  auto add_patches = [&](const char* name, Pass pass, PatchesConfig config) {
    KernelEntry entry{name, pass, true, {kPatchPixels, kPatchChunks, 1}, patches_why_not, patches_plan};
    entry.dtypes = kF32 | kF64 | kHalf, entry.family = KernelFamily::kPatches, entry.patches = config;
    table.push_back(entry);
  };
#define PATCHES_KERNEL(name, pass, layout) add_patches("patches_" #name, Pass::pass, {PatchLayout::layout});
#include "fastconv/families/space_to_depth/patches.def"
#undef PATCHES_KERNEL
  auto add_subpixel = [&](const char* name, Pass pass, SubpixelConfig config) {
    KernelEntry entry{name, pass, true, {kPatchPixels, kPatchChunks, 1}, subpixel_why_not, subpixel_plan};
    entry.dtypes = kF32 | kF64 | kHalf, entry.family = KernelFamily::kSubpixel, entry.subpixel = config;
    table.push_back(entry);
  };
#define SUBPIXEL_KERNEL(name, pass, factor) add_subpixel("subpixel_" #name, Pass::pass, {factor});
#include "fastconv/families/space_to_depth/subpixel.def"
#undef SUBPIXEL_KERNEL
  const std::span<const KernelEntry> cpu = cpu_kernels();
  table.insert(table.end(), cpu.begin(), cpu.end());
  return table;
}

}  // namespace

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = build_table();
  return table;
}

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry& entry : kernel_table()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace fastconv
