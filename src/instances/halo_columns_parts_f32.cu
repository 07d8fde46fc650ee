#include "fastconv/kernels/halo_launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kTma, fastconv::FilterTile::kPairs,
                                                    fastconv::HaloOperands::kParts, float>(int);
