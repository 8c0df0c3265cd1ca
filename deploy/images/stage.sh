#!/usr/bin/env bash
# stage.sh OUT PROGRAM...: a root file system of programs, stripped, and all that they load. Ours are taken from
# build/release/bin, others from PATH. Beside them: users, the order of name lookup, the folders that an engine
# writes to, the licences of the packages that all of it is from, and a list of these packages (sbom.py).
#
# Environment: SOURCE_DATE_EPOCH, the time of that list; FLOTILLA_WORKER, another build's worker; FLOTILLA_NCCL, a folder
# with NCCL, which that worker loads when ranks need it. Errors: a program or library that is not there ends it. Run as
# root, on Debian 12 (its dpkg knows packages and licences).
set -euo pipefail

out=$1
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

install_program() {
  local name=$1 from=$root/build/release/bin/$1
  [[ $name != flotilla-worker || -z ${FLOTILLA_WORKER:-} ]] || from=$FLOTILLA_WORKER
  [[ -x $from ]] || from=$(command -v "$name")
  install -D -m 0755 "$from" "$out/usr/bin/$name"
  strip "$out/usr/bin/$name"
}

# libraries_of FILE...: paths as the loader finds them, itself included.
libraries_of() { ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3} $1 ~ /^\// && $2 ~ /^\(/ {print $1}' | sort -u; }

# Under the name that programs ask for; merged /usr as Debian has it.
install_library() {
  local path=$1
  [[ $path == /usr/* ]] || path=/usr$path
  install -D -m 0755 "$(readlink -f "$1")" "$out$path"
}

# What is compiled into our programs and is in no package.
install_static_licences() {
  local source
  source=$(echo "$root"/build/release/xgrammar/xgrammar-*)
  install -D -m 0644 -t "$out/usr/share/doc/flotilla/licences/xgrammar" "$source"/{LICENSE,NOTICE}
  install -D -m 0644 -t "$out/usr/share/doc/flotilla/licences/picojson" "$source/3rdparty/picojson/picojson.h"
}

# NVIDIA's libraries are in no package of Debian; their licence lets programs bring them.
install_cuda_licence() {
  [[ -n $(find "$out" -name 'libcublasLt.so*' -print -quit) ]] || return 0
  mkdir -p "$out/usr/share/doc/flotilla/licences/nvidia-cublas"
  echo "libcublasLt is NVIDIA's, under the CUDA Toolkit End User License Agreement: https://docs.nvidia.com/cuda/eula/" \
    >"$out/usr/share/doc/flotilla/licences/nvidia-cublas/LICENSE"
}

# Loaded by name, so ldd does not know of it; what it loads itself the worker loads, too.
install_nccl() {
  [[ -n ${FLOTILLA_NCCL:-} ]] || return 0
  local library=/usr/lib/x86_64-linux-gnu/libnccl.so.2
  install -D -m 0755 "$FLOTILLA_NCCL/lib/libnccl.so.2" "$out$library"
  chroot "$out" /lib64/ld-linux-x86-64.so.2 --list "$library" >/dev/null
  install -D -m 0644 "$FLOTILLA_NCCL/LICENSE" "$out/usr/share/doc/flotilla/licences/nvidia-nccl/LICENSE"
}

# install_licences FILE...: dpkg knows a file with or without /usr in front.
install_licences() {
  local real package
  mapfile -t real < <(readlink -f "$@")
  { dpkg-query --search "${real[@]}" "${real[@]#/usr}" 2>/dev/null || true; } | sed 's/:.*//' | sort -u |
    while read -r package; do
      install -D -m 0644 "/usr/share/doc/$package/copyright" "$out/usr/share/doc/$package/copyright"
    done
}

make_folders() {
  local folder
  ln -s usr/lib "$out/lib"
  ln -s usr/lib64 "$out/lib64"
  ln -s usr/bin "$out/bin"
  mkdir -p "$out"/{dev,proc,sys,etc,models}
  install -d -m 1777 "$out/tmp"
  for folder in run/flotilla var/cache/flotilla var/lib/flotilla; do
    install -d -m 0700 -o 65532 -g 65532 "$out/$folder"
  done
  printf 'root:x:0:0::/:/nologin\nflotilla:x:65532:65532::/var/lib/flotilla:/nologin\n' >"$out/etc/passwd"
  printf 'root:x:0:\nflotilla:x:65532:\n' >"$out/etc/group"
  printf 'hosts: files dns\n' >"$out/etc/nsswitch.conf"
}

for program in "$@"; do install_program "$program"; done
mapfile -t libraries < <(libraries_of "$out"/usr/bin/*)
for library in "${libraries[@]}"; do install_library "$library"; done
mapfile -t others < <(for program in "$@"; do [[ -x $root/build/release/bin/$program ]] || command -v "$program"; done)
install_licences "${libraries[@]}" "${others[@]}"
make_folders
install -D -m 0644 "$root/LICENSE" "$out/usr/share/doc/flotilla/copyright"
install_static_licences
install_cuda_licence
install_nccl
version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
sbom=$out/usr/share/doc/flotilla/sbom.spdx.json
python3 "$root/deploy/images/sbom.py" "$out" "flotilla-${out##*/}" "$version" >"$sbom"
# What can't be loaded would be found by nobody before the image runs.
for program in "$@"; do
  chroot "$out" "/usr/bin/$program" --help >/dev/null
done
