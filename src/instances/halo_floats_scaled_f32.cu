#include "fastconv/kernels/halo_launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kFloats, fastconv::FilterTile::kKMajor,
                                                    fastconv::HaloOperands::kScaled, float>(int);
