#include "fastconv/families/halo/launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kPairs, fastconv::FilterTile::kKMajor,
                                                    fastconv::OperandForm::kHalf, __half>(int);
