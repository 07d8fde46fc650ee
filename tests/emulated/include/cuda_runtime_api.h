#pragma once

#include "emulated/cuda.h"
