#include "fastconv/core/problem.h"

#include <ostream>

namespace fastconv {

const char* to_string(Pass pass) {
  switch (pass) {
    case Pass::kFprop: return "fprop";
    case Pass::kDgrad: return "dgrad";
    case Pass::kWgrad: return "wgrad";
  }
  return "unknown";
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
  }
  return "unknown";
}

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::kIeee: return "ieee";
    case Precision::kBf16x3: return "bf16x3";
    case Precision::kTf32: return "tf32";
    case Precision::kAllowTf32: return "allow_tf32";
  }
  return "unknown";
}

int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 8;
    case DType::kFloat32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
  }
  return 0;
}

size_t hash(const ConvProblem& problem) {
  const auto& [pass, dtype, precision, has_bias, n, c, h, w, k, r, s, groups, stride, padding, dilation, x_strides,
               w_strides, y_strides, x_align, w_align, y_align] = problem;
  const int64_t values[] = {static_cast<int64_t>(pass),
                            static_cast<int64_t>(dtype),
                            static_cast<int64_t>(precision),
                            has_bias,
                            n,
                            c,
                            h,
                            w,
                            k,
                            r,
                            s,
                            groups,
                            stride.h,
                            stride.w,
                            padding.h,
                            padding.w,
                            dilation.h,
                            dilation.w,
                            x_strides.c,
                            w_strides.c,
                            y_strides.c,
                            x_align,
                            w_align,
                            y_align};
  uint64_t result = 0;
  for (const int64_t value : values) {  // Knuth's multiplicative hash, value by value
    result = (result ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
    result ^= result >> 32;
  }
  return result;
}

int64_t x_elements(const ConvProblem& problem) { return problem.n * problem.c * problem.h * problem.w; }
int64_t w_elements(const ConvProblem& problem) { return problem.k * problem.c_per_group() * problem.r * problem.s; }
int64_t y_elements(const ConvProblem& problem) { return problem.n * problem.k * problem.p() * problem.q(); }

double flops(const ConvProblem& problem) {
  return 2.0 * static_cast<double>(problem.n) * static_cast<double>(problem.p()) * static_cast<double>(problem.q()) *
         static_cast<double>(problem.k) * static_cast<double>(problem.c_per_group()) * static_cast<double>(problem.r) *
         static_cast<double>(problem.s);
}

double compulsory_bytes(const ConvProblem& problem) {
  return static_cast<double>(x_elements(problem) + w_elements(problem) + y_elements(problem)) *
         static_cast<double>(element_size(problem.dtype));
}

namespace {

struct Quoted {
  const char* name;
  const Strides& strides;
};

std::ostream& operator<<(std::ostream& out, const Quoted& quoted) {
  return out << quoted.name << "=(" << quoted.strides.n << ", " << quoted.strides.c << ", " << quoted.strides.h << ", "
             << quoted.strides.w << ")";
}

std::ostream& operator<<(std::ostream& out, const Pair& pair) { return out << "(" << pair.h << ", " << pair.w << ")"; }

}  // namespace

std::ostream& operator<<(std::ostream& out, const ConvProblem& problem) {
  out << to_string(problem.pass) << " " << to_string(problem.dtype);
  if (problem.dtype == DType::kFloat32) out << " (" << to_string(problem.precision) << ")";
  return out << " N" << problem.n << " C" << problem.c << " H" << problem.h << " W" << problem.w << " K" << problem.k
             << " R" << problem.r << " S" << problem.s << " -> P" << problem.p() << " Q" << problem.q() << ", stride "
             << problem.stride << ", padding " << problem.padding << ", dilation " << problem.dilation << ", groups "
             << problem.groups << (problem.has_bias ? ", bias" : "") << "; strides " << Quoted{"x", problem.x_strides}
             << " " << Quoted{"w", problem.w_strides} << " " << Quoted{"y", problem.y_strides};
}

}  // namespace fastconv
