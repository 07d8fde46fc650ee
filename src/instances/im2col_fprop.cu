#include "fastconv/families/implicit_gemm/im2col_launch.cuh"

template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kFprop, float>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kFprop, double>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kFprop, __half>(int);
template fastconv::Launcher fastconv::im2col_launcher<fastconv::Pass::kFprop, __nv_bfloat16>(int);
