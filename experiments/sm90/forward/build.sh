#!/bin/bash
# Builds the check and benchmark into ${BUILD}/halo: each instance once, one compiler at a time. ptxas's complaints about
# serialised wgmmas, ignored setmaxnreg and spills fail the build.
set -e
cd "$(dirname "$0")"
NVCC=${NVCC:-/usr/local/cuda/bin/nvcc}
FLAGS="-std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -Iinclude -I../../../include ${EXTRA}"
BUILD=${BUILD:-build}; mkdir -p $BUILD
objects=()
compile() {  # object, source, flags
  echo "$1"
  $NVCC $FLAGS $3 -Xptxas -v -c "$2" -o "$1" >"$1.log" 2>&1 || { cat "$1.log"; exit 1; }
  if grep -E 'C75(08|12|14|15|19)|[1-9][0-9]* bytes spill|serializ' "$1.log"; then echo "in $1"; exit 1; fi
  objects+=("$1")
}
while read -r k m c s f; do
  for t in ${DTYPES:-__half __nv_bfloat16}; do
    compile ${BUILD}/halo_${t}_${k}_${m}_${c}_${s}_${f}.o src/instances/halo_sm90.cu \
      "-DHALO_T=$t -DHALO_K=$k -DHALO_M=$m -DHALO_C=$c -DHALO_S=$s -DHALO_F=$f"
  done
done < <(sed -n 's/^HALO_CONFIG(\([^,]*\), \([^,]*\), \([^,]*\), \([^,]*\), \([^,)]*\).*/\1 \2 \3 \4 \5/p' include/fastconv/launch/halo_sm90.def)
for source in src/planner/halo_sm90.cpp src/launch/run_halo.cu bench/halo_bench.cu ../../../src/core/problem.cpp; do
  compile ${BUILD}/$(basename $source).o $source ""
done
$NVCC -cudart static -o ${BUILD}/halo "${objects[@]}"
