#include "fastconv/families/implicit_gemm/im2col_launch.cuh"

template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kWgrad, float>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kWgrad, double>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kWgrad, __half>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kWgrad, __nv_bfloat16>(int);
