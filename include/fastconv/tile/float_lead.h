// float32 planes as they lie, staging kFloats of either engine.
#pragma once

#include "fastconv/tile/raw_planes.h"

namespace fastconv {

// A copy begins at a multiple of 16 bytes, up to so many pixels early: how many, these bits of a pixel's number say.
inline constexpr int32_t kMaxFloatLead = raw_unit(sizeof(float)) - 1;

}  // namespace fastconv
