// Products by their offsets, which Python sees as an array of numpy: a row each, of source, filter and target.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace fastconv {

struct Products : std::vector<std::tuple<int64_t, int64_t, int64_t>> {};

}  // namespace fastconv

template <>
struct pybind11::detail::type_caster<fastconv::Products> {
  static constexpr auto name = const_name("numpy.ndarray");

  static handle cast(const fastconv::Products& products, return_value_policy, handle) {
    array_t<int64_t> rows({static_cast<ssize_t>(products.size()), ssize_t{3}});
    int64_t* to = rows.mutable_data();
    for (const auto& [source, filter, target] : products) *to++ = source, *to++ = filter, *to++ = target;
    return rows.release();
  }
};
