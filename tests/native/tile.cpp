// What several families share: tensors written anew, parts of float32, numbers that one scale fits, divisions.
#include "fastconv/core/fast_divmod.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/families/wgrad/plan.h"
#include "measure.h"
#include "native.h"

namespace fastconv {
namespace {

template <int kVector>
void reorder_by_matrices(const Reorder& order, const ReorderUnit& unit, bool to_planes, std::vector<int64_t>& rows,
                         std::vector<int64_t>& planes) {
  std::vector<int64_t> smem(kReorderBytes / 2, kNothing);
  auto for_planes = [&](auto f) {  // f(place in shared memory, place in the planes)
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t i = 0; i < ReorderAccess<kVector>::kCount; ++i) {
        const ReorderAccess<kVector> of(lane, i);
        for (int32_t p = of.pixel; p < of.pixel + kVector; ++p) {
          const bool exists = of.channel < unit.channels && of.pixel < unit.pixels;
          const int64_t at = unit.plane + of.channel * order.plane_c + p;
          if (exists && p == of.pixel && at % kVector != 0) throw py::index_error("not aligned");
          f(reorder_place(of.channel, of.pixel) / 2 + p - of.pixel, exists ? at : kZero);
        }
      }
    }
  };
  auto for_rows = [&](auto f) {
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t group = 0; group < kReorderPixels / 8; ++group) {
        if (group * 8 + lane / 4 >= unit.pixels || lane % 4 >= unit.chunks) continue;
        for (int32_t i = 0; i < 8; ++i) {  // element i % 2 of register i / 2: that row of matrix i / 2, column lane / 4
          const int32_t named = i / 2 * 8 + lane % 4 * 2 + i % 2;
          const int32_t place = reorder_place(reorder_matrix_row(named), group * 8) / 2 + lane / 4;
          f(place, unit.row + (group * 8 + lane / 4) * int64_t{order.row} + lane % 4 * 8 + i);
        }
      }
    }
  };
  if (to_planes) {
    for_rows([&](int32_t place, int64_t row) { once(smem.at(place), row); });
    for_planes([&](int32_t place, int64_t plane) {
      if (plane != kZero) once(planes.at(plane), smem.at(place));
    });
  } else {
    for_planes([&](int32_t place, int64_t plane) { once(smem.at(place), plane); });
    for_rows([&](int32_t place, int64_t row) { once(rows.at(row), smem.at(place)); });
  }
}

void reorder_by_runs(const Reorder& order, const ReorderUnit& unit, std::vector<int64_t>& rows, int64_t elements) {
  std::vector<int64_t> smem(kReorderBarrier / 2, kNothing);
  for (int32_t channel = 0; channel < std::min(kReorderChannels, unit.channels); ++channel) {
    const int32_t lead = reorder_lead(order, unit, channel), count = (lead + unit.pixels + 7) / 8 * 8;
    const int64_t from = unit.plane + channel * order.plane_c - lead;
    if (from % 8 != 0 || reorder_run(channel) % 16 != 0) throw py::index_error("cannot be copied");
    if (from < 0 || from + count > elements) throw py::index_error("beyond the tensor");
    for (int32_t i = 0; i < count; ++i) once(smem.at(reorder_run(channel) / 2 + i), from + i);
  }
  for (int32_t pixel = 0; pixel < unit.pixels; ++pixel) {
    for (int32_t channel = 0; channel < std::min(kReorderChannels, 8 * unit.chunks); ++channel) {
      once(rows.at(unit.row + pixel * int64_t{order.row} + channel),
           smem.at(reorder_run(channel) / 2 + reorder_lead(order, unit, channel) + pixel));
    }
  }
}

// TMA's boxes, swizzled as it does, on their way to rows or from them.
void reorder_by_boxes(const Reorder& order, const TensorMapSpec& map, const ReorderUnit& unit, bool to_planes,
                      std::vector<int64_t>& rows, std::vector<int64_t>& planes) {
  std::vector<int64_t> smem(kReorderBarrier / 2, kNothing);
  if (map.box[0] * 2 != 128 || map.swizzle_bytes != 128) throw py::index_error("another swizzle");
  auto for_boxes = [&](auto f) {  // f(place in shared memory, element of the planes or kZero)
    for (int half = 0; half < 2; ++half) {
      const uint64_t first = unit.pixel + half * kReorderBoxPixels, channel = unit.channel / 8, image = unit.image;
      int32_t row = 0;
      for (uint32_t j = 0; j < map.box[2]; ++j) {
        for (uint32_t i = 0; i < map.box[1]; ++i, ++row) {
          for (uint32_t pixel = 0; pixel < map.box[0]; ++pixel) {
            const uint64_t at[] = {first + pixel, channel + i, j, image};
            bool inside = true;
            uint64_t element = at[0];
            for (int d = 0; d < 4; ++d) inside = inside && at[d] < map.size[d];
            for (int d = 1; d < 4; ++d) element += at[d] * map.stride[d - 1] / 2;
            const int64_t place = half * kReorderBoxBytes + row * 128 + (((pixel / 8) ^ (row % 8)) * 8 + pixel % 8) * 2;
            f(place / 2, inside ? static_cast<int64_t>(element) : kZero);
          }
        }
      }
    }
  };
  auto for_rows = [&](auto f) {  // f(place in shared memory, element of the rows)
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t pixel = lane / 4; pixel < unit.pixels; pixel += 8) {
        for (int32_t i = 0; i < 8 && lane % 4 < unit.chunks; ++i) {  // as reorder_by_matrices
          const int32_t channel = reorder_matrix_row(i / 2 * 8 + lane % 4 * 2 + i % 2);
          const int32_t place = reorder_box_place(reorder_box_row(channel), pixel / 8) / 2 + lane / 4;
          f(place, unit.row + pixel * int64_t{order.row} + lane % 4 * 8 + i);
        }
      }
    }
  };
  if (to_planes) {
    for_rows([&](int64_t place, int64_t row) { once(smem.at(place), row); });
    for_boxes([&](int64_t place, int64_t element) {
      if (element != kZero) once(planes.at(element), smem.at(place));
    });
  } else {
    for_boxes([&](int64_t place, int64_t element) { once(smem.at(place), element); });
    for_rows([&](int64_t place, int64_t row) { once(rows.at(row), smem.at(place)); });
  }
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>, Reorder> reorder(std::array<int64_t, 4> size, int32_t align,
                                                                        bool to_planes) {
  const auto [n, c, h, w] = size;
  const Side side{n, c, h, w, {c * h * w, h * w, w, 1}, align};
  const Reorder order = make_reorder(side, 1);
  const int64_t row = order.row, pixels = h * w;
  std::vector<int64_t> rows(n * pixels * row, kNothing), planes(n * c * pixels, kNothing);
  for (int32_t index = 0; index < order.units; ++index) {
    const ReorderUnit unit(order, index);
    if (order.copy == ReorderCopy::kRuns && !to_planes) {
      reorder_by_runs(order, unit, rows, n * c * pixels);
    } else if (order.copy == ReorderCopy::kBoxes) {
      reorder_by_boxes(order, reorder_boxes(side, 1), unit, to_planes, rows, planes);
    } else if (order.vector != 1) {
      reorder_by_matrices<2>(order, unit, to_planes, rows, planes);
    } else {
      reorder_by_matrices<1>(order, unit, to_planes, rows, planes);
    }
  }
  std::vector<int64_t> expected;
  if (to_planes) {
    for (int64_t i = 0; i < n * c * pixels; ++i) {
      expected.push_back((i / (c * pixels) * pixels + i % pixels) * row + i / pixels % c);
    }
    return {planes, expected, order};
  }
  for (int64_t i = 0; i < n * pixels * row; ++i) {
    const int64_t channel = i % row, pixel = i / row;
    expected.push_back(channel < c ? (pixel / pixels * c + channel) * pixels + pixel % pixels : kZero);
  }
  return {rows, expected, order};
}

// All that a plan has TMA do.
void check_copies(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  if (!plan.inner.empty()) {
    const InnerPlan& inner = plan.inner.front();
    return check_copies(inner.problem, *inner.plan.kernel, device);
  }
  if (plan.grid == 0) return;  // nothing is launched
  if (kernel.config.holds<HaloConfig>()) check_halo_copies(plan, problem);
  if (kernel.config.holds<WgradConfig>()) check_wgrad_copies(plan, problem);
}

// What a split writes, by the same steps as the kernels: for each element of the workspace, the element of the tensor
// (none for zeros) and the part; none if nothing. Beside it the most accesses of shared memory that wait for each
// other.
using SplitElement = std::optional<std::tuple<std::optional<int64_t>, int>>;
constexpr int64_t kSplitZero = std::numeric_limits<int64_t>::max(), kSplitNothing = std::numeric_limits<int64_t>::min();

template <Operand kOperand>
std::tuple<std::vector<SplitElement>, int> simulate_split(const Split& split, int64_t bytes) {
  constexpr int kChunk = split_chunk(kOperand);
  std::vector<SplitElement> workspace(bytes / kSplitChunkBytes * kChunk);
  int conflicts = 1;
  for (int32_t index = 0; index < split.units; ++index) {
    const auto unit = SplitUnit::at<kOperand>(split, index);
    const bool along_channels = split.read == SplitRead::kChannels;
    std::vector<int64_t> smem(kSplitBytes / 4, kSplitNothing);
    std::array<std::vector<int32_t>, 32> copied, loaded;
    auto copy = [&]<int kVector>(std::integral_constant<int, kVector>) {
      const SplitReader<kVector, 4> reader{split, unit};
      for (int32_t lane = 0; lane < 32; ++lane) {
        auto f = [&](const auto& copies) {
          for (const SplitCopy& copy : copies) {
            if (copy.place < 0) continue;
            if (copy.place % kVector != 0 || (copy.exists && copy.from % kVector != 0)) {
              throw py::index_error("not aligned");
            }
            for (int i = 0; i < kVector; ++i) {
              if (smem.at(copy.place + i) != kSplitNothing) throw py::index_error("copied over");
              smem[copy.place + i] = copy.exists ? copy.from + i : kSplitZero;
            }
            copied[lane].push_back(copy.place);
          }
        };
        along_channels ? reader.along_channels(lane, f) : reader.along_rows(lane, f);
      }
    };
    if (split.vector == 4) copy(std::integral_constant<int, 4>());
    if (split.vector == 2) copy(std::integral_constant<int, 2>());
    if (split.vector == 1) copy(std::integral_constant<int, 1>());
    const SplitWriter<kOperand> writer{split, unit};
    for (int32_t lane = 0; lane < 32; ++lane) {
      writer.along_rows(lane, [&](int32_t row, int32_t channel, int64_t to) {
        for (int i = 0; i < kChunk; ++i) {
          const int32_t place =
              along_channels ? split_channel_place(split, channel + i, row) : split_row_place(split, channel + i, row);
          const int64_t from = smem.at(place);
          if (from == kSplitNothing) throw py::index_error("not copied");
          if (!along_channels || place % 4 == 0) loaded[lane].push_back(place);
          for (int part = 0; part < split.parts; ++part) {
            SplitElement& element = workspace.at((to + part * split.part_pitch) * kChunk + i);
            if (element) throw py::index_error("written twice");
            element = {from == kSplitZero ? std::nullopt : std::optional(from), part};
          }
        }
      });
    }
    conflicts =
        std::max({conflicts, bank_conflicts(copied, split.vector), bank_conflicts(loaded, along_channels ? 4 : 1)});
  }
  return {workspace, conflicts};
}

auto simulate_split(Split split, int64_t bytes, Operand operand, int32_t unit_rows) {
  if (unit_rows != 0) {  // as of larger tensors
    split.units = split.units / ((split.row_count + split.unit_rows - 1) / split.unit_rows);
    split.units *= (split.row_count + unit_rows - 1) / unit_rows;
    split.unit_rows = unit_rows;
  }
  switch (operand) {
    case Operand::kBf16: return simulate_split<Operand::kBf16>(split, bytes);
    case Operand::kFp16: return simulate_split<Operand::kFp16>(split, bytes);
    default: return simulate_split<Operand::kTf32>(split, bytes);
  }
}

Operand parse_operand(const std::string& name) {
  if (name != "tf32" && name != "bf16" && name != "fp16") throw py::value_error("unknown operand: " + name);
  return name == "tf32" ? Operand::kTf32 : name == "bf16" ? Operand::kBf16 : Operand::kFp16;
}

// Bits of the parts of floats, which are given as theirs; eight at a time.
std::vector<std::vector<uint32_t>> split_parts(const std::vector<uint32_t>& values, int parts) {
  std::vector<std::vector<uint32_t>> out(parts);
  for (size_t first = 0; first + 8 <= values.size(); first += 8) {
    float chunk[8];
    for (int i = 0; i < 8; ++i) chunk[i] = std::bit_cast<float>(values[first + i]);
    SplitParts split(chunk);
    for (int part = 0; part < parts; ++part) {
      uint32_t words[4];
      part == parts - 1 ? split.last(words) : split.next(part == 0, split_scale(parts), words);
      for (const uint32_t word : words) out[part].push_back(word & 0xffff), out[part].push_back(word >> 16);
    }
  }
  return out;
}

// The same of fp16, of values that are first multiplied by `scale`.
std::vector<std::vector<uint32_t>> half_parts(const std::vector<float>& values, float scale, int parts) {
  std::vector<std::vector<uint32_t>> out(parts);
  for (size_t first = 0; first + 8 <= values.size(); first += 8) {
    float chunk[8];
    std::copy_n(values.begin() + first, 8, chunk);
    HalfParts split(chunk, scale);
    for (int part = 0; part < parts; ++part) {
      uint32_t words[4];
      part == parts - 1 ? split.last(words) : split.next(split_scale(parts, Operand::kFp16), words);
      for (const uint32_t word : words) out[part].push_back(word & 0xffff), out[part].push_back(word >> 16);
    }
  }
  return out;
}

// A TensorRange: the largest and the least, bits; how many numbers, how many small ones.
using Measured = std::tuple<uint32_t, uint32_t, uint64_t, uint64_t>;

TensorRange from_tuple(const Measured& measured) {
  const auto [most, least, numbers, small] = measured;
  return {most, least, numbers, small};
}

// A tensor map by which float32 values are read: sizes and strides, of elements, and what the workspace holds where it
// begins; nothing if it is the tensor that is read.
using OperandMap = std::tuple<std::vector<uint64_t>, std::vector<uint64_t>, std::vector<SplitElement>>;

OperandMap operand_map(const TensorMapSpec& map, const Split& split, Operand operand, int64_t bytes) {
  const uint64_t element = split.parts > 0 ? kSplitChunkBytes / split_chunk(operand) : sizeof(float);
  std::vector<uint64_t> strides{1};
  for (const uint64_t stride : map.stride) strides.push_back(stride / element);
  if (map.offset != 0) throw py::index_error("begins elsewhere");
  std::vector<SplitElement> written;
  if (split.parts > 0) written = std::get<0>(simulate_split(split, bytes, operand, 0));
  return {{std::begin(map.size), std::end(map.size)}, strides, written};
}

// By the tensor that they hold values of. What a split writes has to lie where the plan has room for it.
std::map<std::string, OperandMap> operand_maps(const ConvProblem& problem, const KernelEntry& kernel,
                                               const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  std::map<std::string, OperandMap> maps;
  if (kernel.config.holds<HaloConfig>()) {
    const HaloLaunch launch = halo_launch(plan, problem);
    const Operand operand = operand_of(kernel.config.as<HaloConfig>().operands);
    if (launch.in_offset > launch.out_offset || launch.out_offset > plan.workspace_bytes) {
      throw py::index_error("beyond the workspace");
    }
    maps["w"] = operand_map(launch.filter_map, launch.params.filter_split, operand, launch.in_offset);
    maps[problem.pass == Pass::kDgrad ? "y" : "x"] =
        operand_map(launch.in_map[0], launch.params.in_split, operand, launch.out_offset - launch.in_offset);
  } else {
    const WgradLaunch launch = wgrad_launch(plan, problem);
    const Operand operand = operand_of(kernel.config.as<WgradConfig>().operands);
    const int64_t y_offset = launch.y_offset, end = launch.done_offset;
    if (y_offset > end || end > launch.partial_offset || launch.partial_offset > plan.workspace_bytes) {
      throw py::index_error("beyond the workspace");
    }
    maps["x"] = operand_map(launch.x_map, launch.params.x_split, operand, y_offset);
    maps["y"] = operand_map(launch.y_map[0], launch.params.y_split, operand, end - y_offset);
  }
  return maps;
}

}  // namespace

void bind_tile(py::module_& m) {
  m.def(
      "reorder",
      [](std::array<int64_t, 4> size, int32_t align, bool to_planes) {
        const auto [moved, expected, order] = reorder(size, align, to_planes);
        const char* const copies[] = {"boxes", "runs", "values"};
        return std::tuple{moved, expected, order.vector, copies[static_cast<int>(order.copy)]};
      },
      "size"_a, "align"_a, "to_planes"_a);
  m.def("check_copies", &check_copies, "problem"_a, "kernel"_a, "device"_a);
  m.def(
      "split_products",
      [](int32_t parts, int32_t beyond) {
        std::vector<std::pair<int32_t, int32_t>> products;
        for (int32_t i = 0; i < split_products(parts) + beyond; ++i) {
          const SplitProduct product(parts, i);
          products.emplace_back(product.first, product.second);
        }
        return products;
      },
      "parts"_a, "beyond"_a = 0);
  py::class_<FastDivmod>(m, "FastDivmod")
      .def(py::init<int64_t>(), "divisor"_a)
      .def("div", &FastDivmod::div, "dividend"_a)
      .def(
          "divmod",
          [](const FastDivmod& division, int32_t dividend) {
            int32_t quotient, remainder;
            division.divmod(dividend, quotient, remainder);
            return std::tuple{quotient, remainder};
          },
          "dividend"_a);
  auto side_of = [](std::array<int64_t, 4> size, const Quad& strides, int32_t align) {
    return Side{size[0], size[1], size[2], size[3], from_quad(strides), align};
  };
  m.def(
      "split",
      [side_of](std::array<int64_t, 4> size, const Quad& strides, int64_t groups, int32_t align,
                const std::string& name, int parts, int32_t unit_rows) {
        const Operand operand = parse_operand(name);
        const Side side = side_of(size, strides, align);
        return simulate_split(make_split(side, groups, operand, parts), split_bytes(side, groups, operand, parts),
                              operand, unit_rows);
      },
      "size"_a, "strides"_a, "groups"_a, "align"_a, "operand"_a, "parts"_a, "unit_rows"_a = 0);
  m.def(
      "split_plan",
      [side_of](std::array<int64_t, 4> size, const Quad& strides, int64_t groups, int32_t align,
                const std::string& operand, int parts) {
        const Split split = make_split(side_of(size, strides, align), groups, parse_operand(operand), parts);
        const char* read = split.read == SplitRead::kChannels ? "channels" : "rows";
        return std::tuple{read, split.vector, 1 << split.channels_log2, split.unit_rows, split.units};
      },
      "size"_a, "strides"_a, "groups"_a, "align"_a, "operand"_a, "parts"_a);
  m.def(
      "split_strides",
      [side_of](std::array<int64_t, 4> size, int64_t groups, const std::string& operand, int parts) {
        return to_quad(split_side(side_of(size, {}, 4), groups, parse_operand(operand), parts).stride);
      },
      "size"_a, "groups"_a, "operand"_a, "parts"_a);
  m.def(
      "filter_split",
      [](const ConvProblem& problem, const std::string& name, int parts, int32_t unit_rows) {
        const Operand operand = parse_operand(name);
        return simulate_split(make_filter_split(problem, operand, parts), filter_split_bytes(problem, operand, parts),
                              operand, unit_rows);
      },
      "problem"_a, "operand"_a, "parts"_a, "unit_rows"_a = 0);
  m.def("operand_maps", unless_refused(operand_maps), "problem"_a, "kernel"_a, "device"_a);
  m.def("split_parts", py::overload_cast<const std::vector<uint32_t>&, int>(&split_parts), "values"_a, "parts"_a);
  m.def("half_parts", &half_parts, "values"_a, "scale"_a, "parts"_a);
  m.def(
      "measure",
      [](const std::vector<float>& values) -> Measured {
        const TensorRange range = measure(values);
        return {range.most, range.least, range.numbers, range.small};
      },
      "values"_a);
  m.def(
      "operand_range",
      [](const Measured& first, const Measured& second, int parts) {
        const OperandRange range = operand_range(from_tuple(first), from_tuple(second), widest_range(parts));
        return std::tuple{range.fits != 0, std::array{range.scale[0], range.scale[1]},
                          std::array{range.unscale[0], range.unscale[1]}};
      },
      "first"_a, "second"_a, py::kw_only(), "parts"_a = 1);
  m.def(
      "to_tf32",
      [](const std::vector<uint32_t>& values) {
        std::vector<uint32_t> out;
        for (const uint32_t value : values) out.push_back(to_tf32(std::bit_cast<float>(value)));
        return out;
      },
      "values"_a);
}

}  // namespace fastconv
