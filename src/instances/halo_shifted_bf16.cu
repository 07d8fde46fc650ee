#include "fastconv/kernels/halo_launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kShifted, fastconv::FilterTile::kKMajor,
                                                    fastconv::HaloOperands::kHalf, __nv_bfloat16>(int);
