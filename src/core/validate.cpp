#include "fastconv/core/validate.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace fastconv {
namespace {

std::string show(const Sizes& sizes) {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < sizes.size(); ++i) out << (i ? ", " : "") << sizes[i];
  out << "]";
  return out.str();
}

template <typename... Parts>
std::string sentence(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string show(const Pair& pair) { return show(Sizes{pair.h, pair.w}); }

// Index maths has 64 bits for products of two of these, and 32 for offsets within a filter.
constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

std::string too_large(const char* name, const Pair& pair, const char* where) {
  return sentence(name, " must be less than 2^31 in each dimension", where, ", but got ", show(pair));
}

std::string check_pair(const char* name, const Pair& pair, int64_t least) {
  if (std::min(pair.h, pair.w) >= least) return {};
  return sentence(name, " must be at least ", least, " in each dimension, but got ", show(pair),
                  least == 0 ? ": negative padding is not supported" : "");
}

int64_t along(const Pair& pair, int dim) { return dim ? pair.w : pair.h; }
int64_t& along(Pair& pair, int dim) { return dim ? pair.w : pair.h; }
int64_t padded(const ConvGeometry& g, int dim) { return g.input[2 + dim] + 2 * along(g.padding, dim); }
// Of a legal geometry: how far the filter moves.
int64_t room(const ConvGeometry& g, int dim) {
  return padded(g, dim) - (along(g.dilation, dim) * (g.weight[2 + dim] - 1) + 1);
}
int64_t outputs(const ConvGeometry& g, int dim) { return room(g, dim) / along(g.stride, dim) + 1; }

// Expanded tensors may have more elements than any memory; their bytes at least are to fit 64 bits.
std::string check_elements(const char* name, const Sizes& sizes) {
  constexpr int64_t kMost = int64_t{1} << 60;
  int64_t elements = 1;
  bool overflows = false;
  for (const int64_t size : sizes) overflows |= __builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements);
  if (!overflows && elements < kMost) return {};
  return sentence(name, " must have fewer than 2^60 elements, but got size ", show(sizes));
}

}  // namespace

std::string validate(const ConvGeometry& g) {
  if (g.input.size() != 4) {
    return sentence("input must be 3-D (C, H, W) or 4-D (N, C, H, W), but got size ", show(g.input));
  }
  if (g.weight.size() != 4) return sentence("weight must be 4-D (K, C/groups, R, S), but got size ", show(g.weight));
  if (auto error = check_pair("stride", g.stride, 1); !error.empty()) return error;
  if (auto error = check_pair("padding", g.padding, 0); !error.empty()) return error;
  if (auto error = check_pair("dilation", g.dilation, 1); !error.empty()) return error;
  if (std::max(g.padding.h, g.padding.w) > kLargest) return too_large("padding", g.padding, "");
  if (g.groups < 1) return sentence("groups must be at least 1, but got ", g.groups);
  for (const Sizes* sizes : {&g.input, &g.weight}) {
    for (const int64_t size : *sizes) {
      if (size < 0) {
        return sentence(sizes == &g.input ? "input" : "weight", " sizes must not be negative, but got ", show(*sizes));
      }
    }
  }
  if (g.weight[0] < g.groups || g.weight[0] % g.groups != 0) {
    return sentence("weight must have a positive multiple of groups=", g.groups,
                    " filters in dimension 0, but got size ", show(g.weight));
  }
  if (g.input[1] % g.groups != 0 || g.input[1] / g.groups != g.weight[1]) {
    return sentence("input must have weight.size(1) * groups = ", g.weight[1], " * ", g.groups, " channels, but got ",
                    g.input[1], " channels: input size ", show(g.input), ", weight size ", show(g.weight));
  }
  if (g.input[2] == 0 || g.input[3] == 0) {
    return sentence("input must have at least one row and one column (only N and C may be 0), but got size ",
                    show(g.input));
  }
  if (g.weight[2] == 0 || g.weight[3] == 0) {
    return sentence("weight must have at least one row and one column, but got size ", show(g.weight));
  }
  if (auto error = check_elements("input", g.input); !error.empty()) return error;
  if (auto error = check_elements("weight", g.weight); !error.empty()) return error;
  for (int dim = 0; dim < 2; ++dim) {
    // An expanded filter may be so tall that the product does not fit 64 bits.
    int64_t span;
    const bool overflows = __builtin_mul_overflow(along(g.dilation, dim), g.weight[2 + dim] - 1, &span);
    if (overflows || span >= padded(g, dim)) {
      return sentence("weight must not be larger than the padded input, but in dimension ", dim ? "W" : "H",
                      " the dilated kernel spans ", overflows ? "over 2^63" : std::to_string(span + 1),
                      " and the padded input ", padded(g, dim), ": input size ", show(g.input), ", weight size ",
                      show(g.weight), ", padding ", show(g.padding), ", dilation ", show(g.dilation));
    }
    if (along(g.stride, dim) > kLargest && room(g, dim) >= along(g.stride, dim)) {
      return too_large("stride", g.stride, " where it is used");
    }
    if (along(g.dilation, dim) > kLargest && g.weight[2 + dim] > 1) {
      return too_large("dilation", g.dilation, " where it is used");
    }
  }
  return check_elements("output", {g.input[0], g.weight[0], outputs(g, 0), outputs(g, 1)});
}

ConvGeometry simplified(ConvGeometry g) {
  for (int dim = 0; dim < 2; ++dim) {
    if (g.weight[2 + dim] == 1) along(g.dilation, dim) = 1;
    if (along(g.stride, dim) > kLargest) along(g.stride, dim) = room(g, dim) + 1;
  }
  return g;
}

std::string validate_bias(const ConvGeometry& g, const Sizes& bias) {
  if (bias.size() == 1 && bias[0] == g.weight[0]) return {};
  return sentence("bias must be 1-D with weight.size(0) = ", g.weight[0], " elements, but got size ", show(bias));
}

std::string validate_grad_output(const ConvGeometry& g, const Sizes& grad_output) {
  const Sizes expected = output_size(g);
  if (grad_output == expected) return {};
  return sentence("grad_output must have the size of the output, ", show(expected), ", but got ", show(grad_output));
}

Sizes output_size(const ConvGeometry& g) {
  if (!validate(g).empty()) return {};
  return {g.input[0], g.weight[0], outputs(g, 0), outputs(g, 1)};
}

}  // namespace fastconv
