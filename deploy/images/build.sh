#!/usr/bin/env bash
# build.sh: makes the images of router and engine from build/release/bin with buildah, without a registry and without a
# base: our programs, the libraries that they load (stage.sh), and nothing else. The programs must have been built on
# Debian 12, as `./flotilla image` does.
#
# The same programs give the same layers: every file and the image itself have the commit's time. Environment: TAG
# (default: the version of CMakeLists.txt). Errors: a program, or the default model, that is not there; an image over
# its size. Run as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf
tag=${TAG:-$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")}
epoch=$(git -C "$root" log -1 --format=%ct)
export BUILDAH_ISOLATION=chroot
say() { printf 'image: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# commit TARGET CONTAINER OPTION...: the container with these options as flotilla/TARGET.
commit() {
  local target=$1 container=$2
  shift 2
  buildah config --user 65532:65532 --env PATH=/usr/bin "$@" "$container"
  buildah commit --quiet --rm --timestamp "$epoch" "$container" "localhost/flotilla/$target:$tag" >/dev/null
  say "flotilla/$target:$tag"
}

# check_size TARGET FOLDER MOST_BYTES
check_size() {
  local bytes
  bytes=$(du --summarize --bytes "$2" | cut -f 1)
  say "flotilla/$1 has $bytes bytes, at most $3"
  ((bytes <= $3)) || die "flotilla/$1 is too large"
}

# from_root FOLDER: sets `container`, a new one from scratch with this root file system; modes and owners stay.
from_root() {
  container=$(buildah from scratch)
  tar -C "$1" --numeric-owner -cf "$work/root.tar" .
  buildah add --quiet "$container" "$work/root.tar" / >/dev/null
}

((EUID == 0)) || die "buildah's chroot isolation needs root"
[[ -r $model ]] || die "the default model is not at $model; ./flotilla image fetches it"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
engine_ports=(--port 50051 --port 9400)
engine_entry=(--entrypoint '["/usr/bin/flotilla"]')

"$root/deploy/images/stage.sh" "$work/router" flotilla-router
check_size router "$work/router" 40000000
from_root "$work/router"
commit router "$container" --port 8000 "${engine_ports[@]}" --entrypoint '["/usr/bin/flotilla-router"]'

"$root/deploy/images/stage.sh" "$work/engine-cpu" flotilla flotilla-scheduler flotilla-worker flotilla-detokenizer \
  flotilla-grammar flotilla-flight sha256sum
check_size engine-cpu "$work/engine-cpu" 80000000
from_root "$work/engine-cpu"
commit engine-cpu "$container" "${engine_ports[@]}" "${engine_entry[@]}"

install -D -m 0444 "$model" "$work/engine-cpu/models/${model##*/}"
from_root "$work/engine-cpu"
commit engine-cpu-smollm2 "$container" "${engine_ports[@]}" "${engine_entry[@]}"

# Only the model, for deploy/components/model-image.
mkdir "$work/model"
mv "$work/engine-cpu/models/${model##*/}" "$work/model"
from_root "$work/model"
commit model-smollm2 "$container"
