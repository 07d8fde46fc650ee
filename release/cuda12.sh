#!/usr/bin/env bash
# Makes a CUDA 12 toolkit in a folder, for a CUDA_HOME: a wheel that is built with CUDA 13 needs driver 580, one with
# CUDA 12 runs from driver 525 on. nvcc, cicc and the runtime are 12.4, of the next Debian's non-free packages; ptxas is
# 12.9, PyPI's, as 12.4's serialises wgmma. Some 1 GB is downloaded.
#   release/cuda12.sh FOLDER     on Debian, x86-64
set -euo pipefail

top=$(realpath -m "${1:?usage: release/cuda12.sh FOLDER}")
if [ -e "$top" ] && [ ! -e "$top/made-by-cuda12.sh" ]; then
  echo "cuda12.sh: $top is there, and no toolkit of this script's" >&2
  exit 1
fi
rm -rf "$top"
mkdir -p "$top"/{bin,root,apt/lists/partial,apt/cache,apt/sources,downloads}

# apt as this machine reaches it, but for another release, whose lists are kept apart.
uri=$(grep -hs '^URIs:' /etc/apt/sources.list.d/*.sources | grep -v security | head -n1 | cut -d' ' -f2 || true)
cat >"$top/apt/sources/trixie.sources" <<TEXT
Types: deb
URIs: ${uri:-https://deb.debian.org/debian}
Suites: trixie
Components: main contrib non-free
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
TEXT
apt=(apt-get -q -oDir::Etc::sourcelist=/dev/null -oDir::Etc::sourceparts="$top/apt/sources"
  -oDir::State::Lists="$top/apt/lists" -oDir::Cache="$top/apt/cache")
touch "$top/made-by-cuda12.sh"
cd "$top/downloads"
"${apt[@]}" update >/dev/null
"${apt[@]}" download nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4 libcudart12 libcu++-dev >/dev/null
for package in *.deb; do dpkg -x "$package" "$top/root"; done
python3 -m pip download -q --no-deps -d . nvidia-cuda-nvcc-cu12==12.9.86
python3 -m zipfile -e nvidia_cuda_nvcc_cu12-*.whl .
install -m755 nvidia/cuda_nvcc/bin/ptxas "$top/root/usr/lib/nvidia-cuda-toolkit/bin/ptxas"
cd "$top"
rm -rf downloads apt

# Debian spreads a toolkit over /usr; what builds with one looks here.
ln -s root/usr/include "$top/include"
ln -s root/usr/lib/x86_64-linux-gnu "$top/lib64"
cat >"$top/bin/nvcc" <<TEXT
#!/bin/sh
export LD_LIBRARY_PATH='$top/lib64' PATH='$top/root/usr/lib/nvidia-cuda-toolkit/bin:$top/root/usr/bin':"\$PATH"
exec '$top/root/usr/lib/nvidia-cuda-toolkit/bin/nvcc' -ccbin "\${CXX:-g++}" -I'$top/include' -L'$top/lib64' "\$@"
TEXT
chmod +x "$top/bin/nvcc"
"$top/bin/nvcc" --version | tail -n2
