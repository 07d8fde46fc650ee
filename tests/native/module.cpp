// The pybind11 module of _fastconv_native.pyi.
#include "native.h"

PYBIND11_MODULE(_fastconv_native, m) {
  fastconv::bind_planner(m);
  fastconv::bind_tile(m);
  fastconv::bind_depthwise(m);
  fastconv::bind_few_channels(m);
  fastconv::bind_grouped(m);
  fastconv::bind_halo(m);
  fastconv::bind_implicit_gemm(m);
  fastconv::bind_pointwise(m);
  fastconv::bind_space_to_depth(m);
  fastconv::bind_wgrad(m);
}
