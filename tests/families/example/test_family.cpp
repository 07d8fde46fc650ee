// That a family needs nothing but its own files and a line in the list.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "fastconv/planner/planner.h"

using namespace fastconv;

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

ConvProblem problem_of(int64_t size, DType dtype) {
  ConvProblem p{};
  p.pass = Pass::kFprop, p.dtype = dtype;
  p.n = 1, p.c = 3, p.h = p.w = size, p.k = 5, p.r = p.s = 3, p.groups = 1;
  p.stride = p.dilation = {1, 1}, p.padding = {1, 1};
  p.x_strides = {3 * size * size, size * size, size, 1};
  p.w_strides = {27, 9, 3, 1};
  p.y_strides = {5 * size * size, size * size, size, 1};
  p.x_align = p.w_align = p.y_align = 64;
  return p;
}

}  // namespace

int main() {
  const DeviceSpec cpu{};
  const KernelEntry* kernel = find_kernel("example_fprop");
  expect(kernel != nullptr, "its kernel is in the table");

  const Choice small = make_plan(problem_of(8, DType::kFloat64), cpu);
  expect(small.plan.kernel == kernel, "what costs least is chosen");
  const std::string text = explain(problem_of(8, DType::kFloat64), cpu);
  expect(text.find("plan: example_fprop 64 pixels") != std::string::npos, "it describes its tiling");

  const Choice large = make_plan(problem_of(9, DType::kFloat64), cpu);
  expect(large.plan.kernel != nullptr && large.plan.kernel != kernel, "what it refuses is another's");
  expect(offer(*kernel, problem_of(9, DType::kFloat64), cpu).why_not == std::string_view("is for up to 64 pixels"),
         "it says why");
  expect(
      offer(*kernel, problem_of(8, DType::kFloat32), cpu).why_not == std::string_view("is not compiled for this dtype"),
      "what holds for all is said for it");

  struct Other {};
  try {
    kernel->config.as<Other>();
    expect(false, "no one else reads its config");
  } catch (const std::logic_error&) {
  }
}
