// What TMA knows of a tensor.
#pragma once

#include "fastconv/tile/tensor_map_spec.h"

struct CUtensorMap {
  fastconv::TensorMapSpec spec;
  const char* address;
  int element_bytes;
};
