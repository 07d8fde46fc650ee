#!/bin/bash
# Builds the check and benchmark into ${BUILD}/wgrad: each instance once, one compiler at a time. ptxas's complaints about
# serialised wgmmas, ignored setmaxnreg and spills fail the build.
set -e
cd "$(dirname "$0")"
NVCC=${NVCC:-/usr/local/cuda/bin/nvcc}
FLAGS="-std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -Iinclude -I../forward/include -I../../../include ${EXTRA}"
BUILD=${BUILD:-build}; mkdir -p $BUILD
sources=(src/planner/wgrad_sm90.cpp src/launch/tensor_map.cpp src/launch/run_wgrad.cu bench/wgrad_bench.cu ../../../src/core/problem.cpp)
objects=()
newest=$(ls -t $(find include -name "*.cuh" -o -name wgrad_params.h) src/instances/wgrad_sm90.cu | head -1)
compile() {  # object, source, flags
  if [ ! -e "$1" ] || [ "$2" -nt "$1" ] || [ "$newest" -nt "$1" ] || [ -n "$FORCE" ]; then
    echo "$1"
    $NVCC $FLAGS $3 -Xptxas -v -c "$2" -o "$1.tmp" >"$1.log" 2>&1 || { cat "$1.log"; exit 1; }
    if grep -E 'C75(08|12|14|15|19)|[1-9][0-9]* bytes spill|serializ' "$1.log"; then echo "in $1"; exit 1; fi
    mv "$1.tmp" "$1"
  fi
}
while read -r c b u w s; do
  for t in ${DTYPES:-__half __nv_bfloat16}; do
    object=${BUILD}/wgrad_${t}_${c}_${b}_${u}_${w}_${s}.o
    compile $object src/instances/wgrad_sm90.cu "-DWGRAD_T=$t -DWGRAD_C=$c -DWGRAD_B=$b -DWGRAD_U=$u -DWGRAD_W=$w -DWGRAD_S=$s"
    objects+=($object)
  done
done < <(sed -n 's/^WGRAD_CONFIG(\(.*\), \(.*\), \(.*\), \(.*\), \(.*\))/\1 \2 \3 \4 \5/p' include/fastconv/launch/wgrad_sm90.def)
for s in "${sources[@]}"; do
  object=${BUILD}/$(basename "$s").o
  compile $object "$s" ""
  objects+=($object)
done
$NVCC -cudart static -o ${BUILD}/wgrad "${objects[@]}"
