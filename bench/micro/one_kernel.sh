#!/bin/sh
# Compiles one_kernel.cu for one line of src/launch/configs/{halo,wgrad}.def.
#   bench/micro/one_kernel.sh OUT -DBLOCK_K=128 -DM_BLOCKS=2 -DCHANNELS=64 -DSTAGING=kTma -DFILTER=kKMajor -DCOLUMNS=1
#   bench/micro/one_kernel.sh OUT -DCHANNELS=64 -DBLOCKS=3 -DUNITS=1 -DWARPGROUPS=3 -DSTAGING=kTma
# Objects of the planner are kept in build/one_kernel; ptxas says on stderr what the kernel needs.
set -eu
cd "$(dirname "$0")/../.."
out=$1 objects=build/one_kernel
shift
mkdir -p "$objects"
for file in src/core/*.cpp src/planner/*.cpp src/launch/tensor_map.cpp; do
  object=$objects/$(basename "$file" .cpp).o
  if [ ! "$object" -nt "$file" ] || [ -n "$(find include -newer "$object" -name '*.h' | head -n 1)" ]; then
    ${CXX:-g++} -std=c++20 -O1 -Iinclude -I"${CUDA_HOME:-/usr/local/cuda-13.0}/include" -c "$file" -o "$object"
  fi
done
"${CUDA_HOME:-/usr/local/cuda-13.0}/bin/nvcc" -std=c++20 -O3 -arch=sm_90a -Iinclude -DLINES=false -Xptxas=-v "$@" \
  bench/micro/one_kernel.cu "$objects"/*.o -o "$out" 2>&1 | grep -A2 -E "error|C75|sm90" >&2
