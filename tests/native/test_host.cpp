// What pytest cannot reach quickly enough or at all: exhaustive index maths, and the internals without an interpreter.
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/core/validate.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

void fast_divmod_is_exact() {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  const auto check = [](int64_t divisor, int64_t dividend) {
    if (dividend < 0 || dividend > kMost) return;
    int32_t quotient, remainder;
    FastDivmod(divisor).divmod(static_cast<int32_t>(dividend), quotient, remainder);
    expect(quotient == dividend / divisor && remainder == dividend % divisor,
           std::to_string(dividend) + " divided by " + std::to_string(divisor));
  };
  const auto check_edges = [&](int64_t divisor) {
    // A wrong multiplier shows first where the quotient steps, and at the largest dividends.
    for (const int64_t multiple : {int64_t{0}, int64_t{1}, int64_t{2}, kMost / divisor / 2, kMost / divisor}) {
      for (int64_t delta = -2; delta <= 2; ++delta) check(divisor, multiple * divisor + delta);
    }
    check(divisor, kMost);
  };
  for (int64_t divisor = 1; divisor <= 70'000; ++divisor) check_edges(divisor);
  for (int bit = 1; bit < 31; ++bit) {
    for (int64_t delta = -1; delta <= 1; ++delta) check_edges((int64_t{1} << bit) + delta);
  }
  check_edges(kMost);
}

void output_size_is_the_number_of_places_the_filter_fits() {
  for (int64_t h = 1; h <= 12; ++h) {
    for (int64_t r = 1; r <= 5; ++r) {
      for (int64_t stride = 1; stride <= 3; ++stride) {
        for (int64_t pad = 0; pad <= 3; ++pad) {
          for (int64_t dilation = 1; dilation <= 3; ++dilation) {
            int64_t places = 0;
            for (int64_t first = -pad; first + dilation * (r - 1) < h + pad; first += stride) ++places;
            const ConvGeometry geometry{{1, 1, h, h}, {1, 1, r, r},         {stride, stride},
                                        {pad, pad},   {dilation, dilation}, 1};
            const Sizes expected = places > 0 ? Sizes{1, 1, places, places} : Sizes{};
            expect(output_size(geometry) == expected && validate(geometry).empty() == (places > 0),
                   "output size of h " + std::to_string(h) + ", r " + std::to_string(r) + ", stride " +
                       std::to_string(stride) + ", padding " + std::to_string(pad) + ", dilation " +
                       std::to_string(dilation));
          }
        }
      }
    }
  }
}

void every_kernel_is_found_by_its_name() {
  expect(!kernel_table().empty(), "the table of kernels is empty");
  for (const KernelEntry& kernel : kernel_table()) {
    expect(find_kernel(kernel.name) == &kernel, std::string("find_kernel(") + kernel.name + ")");
  }
  expect(find_kernel("no_such_kernel") == nullptr, "find_kernel of an unknown name");
}

}  // namespace
}  // namespace fastconv

int main() {
  fastconv::fast_divmod_is_exact();
  fastconv::output_size_is_the_number_of_places_the_filter_fits();
  fastconv::every_kernel_is_found_by_its_name();
  std::printf("%d failed\n", fastconv::failures);
  return fastconv::failures == 0 ? 0 : 1;
}
