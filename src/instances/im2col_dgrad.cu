#include "fastconv/families/implicit_gemm/im2col_launch.cuh"

template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kDgrad, float>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kDgrad, double>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kDgrad, __half>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kDgrad, __nv_bfloat16>(int);
