#include "fastconv/families/halo/launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kTma, fastconv::FilterTile::kPairs,
                                                    fastconv::OperandForm::kScaled, float>(int);
