#include "fastconv/families/halo/launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kTransposed, fastconv::FilterTile::kKMajor,
                                                    fastconv::OperandForm::kPromotedParts, float>(int);
