#include "fastconv/families/halo/launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kTma, fastconv::FilterTile::kNMajor,
                                                    fastconv::OperandForm::kHalf, __half>(int);
