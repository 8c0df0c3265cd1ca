#!/usr/bin/env bash
# roots.sh OUT: the root file systems of all images, from build/release/bin: OUT/router, OUT/engine-cpu,
# OUT/model-smollm2 with only the default model, and OUT/engine-cuda where build/cuda has been configured. Dockerfile's stage `roots`.
#
# Environment: SOURCE_DATE_EPOCH, as stage.sh. Errors: a program, or the default model, that is not there; a root file
# system over its size. Run as root, on Debian 12.
set -euo pipefail

out=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
model=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf
say() { printf 'image: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# check_size TARGET MOST_BYTES
check_size() {
  local bytes
  bytes=$(du --summarize --bytes "$out/$1" | cut -f 1)
  say "flotilla/$1 has $bytes bytes, at most $2"
  ((bytes <= $2)) || die "flotilla/$1 is too large"
}

[[ -r $model ]] || die "the default model is not at $model; ./flotilla image fetches it"
"$here/stage.sh" "$out/router" flotilla-router
check_size router 40000000
"$here/stage.sh" "$out/engine-cpu" flotilla flotilla-scheduler flotilla-worker flotilla-detokenizer flotilla-grammar \
  flotilla-flight sha256sum
check_size engine-cpu 80000000
if [[ -e $root/build/cuda/build.ninja ]]; then # the same, but for the worker
  nccl=$root/.cache/nccl
  [[ -r $nccl/lib/libnccl.so.2 ]] || {
    say "warning: engine-cuda goes without NCCL, which is not in $nccl; ./flotilla image --cuda fetches it"
    nccl=
  }
  PATH=$PATH:/usr/local/cuda/bin ninja -C "$root/build/cuda" flotilla-worker >&2
  FLOTILLA_WORKER=$root/build/cuda/bin/flotilla-worker FLOTILLA_NCCL=$nccl "$here/stage.sh" "$out/engine-cuda" flotilla \
    flotilla-scheduler flotilla-worker flotilla-detokenizer flotilla-grammar flotilla-flight sha256sum
  check_size engine-cuda 900000000
fi
install -D -m 0444 "$model" "$out/model-smollm2/${model##*/}"
