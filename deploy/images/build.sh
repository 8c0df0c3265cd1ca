#!/usr/bin/env bash
# build.sh [TARGET...]: makes the images of Dockerfile, all or some, with buildah, without a registry and without a
# base: its stage `roots` is what roots.sh makes of build/release/bin. The programs must have been built on Debian 12,
# as `./flotilla image` does. engine-cuda is among them where build/cuda has been configured (docs/cuda.md).
#
# build.sh --list: the names of all images that it can make, as the manifests have them, a line each.
#
# The names begin with localhost/: with a registry in front nobody, kubelets neither, takes them for Docker Hub's.
# The same programs give the same digests: every file and the images themselves have one time. Environment: TAG
# (default: the version of CMakeLists.txt), SOURCE_DATE_EPOCH (default: the commit's time). Errors: those of roots.sh.
# Run as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
tag=${TAG:-$version}
every=(router engine-cpu engine-cpu-smollm2 model-smollm2 engine-cuda)
name() { printf 'localhost/flotilla/%s:%s\n' "$1" "$tag"; }
if [[ ${1:-} == --list ]]; then
  for target in "${every[@]}"; do name "$target"; done
  exit
fi

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
export BUILDAH_ISOLATION=chroot
targets=("$@")
if ((${#targets[@]} == 0)); then
  targets=("${every[@]}")
  [[ -e $root/build/cuda/build.ninja ]] || unset 'targets[-1]' # engine-cuda
fi
say() { printf 'image: %s\n' "$*" >&2; }

((EUID == 0)) || { say "error: buildah's chroot isolation needs root"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/empty"
"$root/deploy/images/roots.sh" "$work/roots"
for target in "${targets[@]}"; do
  buildah build --quiet --layers=false --file "$root/deploy/images/Dockerfile" --target "$target" \
    --build-context roots="$work/roots" --timestamp "$SOURCE_DATE_EPOCH" \
    --build-arg VERSION="$version" --build-arg REVISION="$(git -C "$root" rev-parse HEAD)" \
    --build-arg CREATED="$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
    --tag "$(name "$target")" "$work/empty" >/dev/null
  say "$(name "$target")"
done
