#!/bin/sh
# Runs the nvcc command it is given, and fails where ptxas says that a kernel for sm_90a spills registers or that it had
# to serialise or patch up asynchronous matrix products (C7508 to C7519). ptxas calls the latter information, which
# -Werror lets pass, and kernels for other chips may spill.
output=$("$@" 2>&1)
status=$?
[ -z "$output" ] || printf '%s\n' "$output" >&2
if printf '%s\n' "$output" | grep -qE '\(C75[01][0-9]\)|Registers are spilled .*(_sm90|reduce_wgrad)'; then
  echo "strict_nvcc: refused, see ptxas's complaints above" >&2
  exit 1
fi
exit $status
