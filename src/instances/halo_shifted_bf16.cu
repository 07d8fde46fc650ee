#include "fastconv/families/halo/launch.cuh"

template fastconv::Launcher fastconv::halo_launcher<fastconv::HaloStaging::kShifted, fastconv::FilterTile::kKMajor,
                                                    fastconv::OperandForm::kHalf, __nv_bfloat16>(int);
