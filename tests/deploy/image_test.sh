#!/usr/bin/env bash
# image_test.sh: makes the images and asks them something (./flotilla image); then that a second build has the same
# digests, that one with another time has not, and that the images say what they are and hold a list of what is in them.
#
# Errors: the first check that fails. Needs the default model and buildah. Run as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
images=(router engine-cpu engine-cpu-smollm2 model-smollm2)
say() { printf 'image: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
cleanup() {
  local image
  for image in "${images[@]}"; do buildah rmi "localhost/flotilla/$image:again" >/dev/null 2>&1 || true; done
}
trap cleanup EXIT

# field IMAGE:TAG PYTHON: an expression over what buildah knows of the image.
field() {
  buildah inspect --type image "localhost/flotilla/$1" |
    python3 -c "import json, sys; image = json.load(sys.stdin); print($2)"
}
digest() { field "$1" 'image["FromImageDigest"]'; }

"$root/flotilla" image
TAG=again "$root/deploy/images/build.sh"
for image in "${images[@]}"; do
  [[ $(digest "$image:$version") == sha256:* ]] || die "$image has no digest"
  [[ $(digest "$image:$version") == "$(digest "$image:again")" ]] || die "a second build of $image has another digest"
done
epoch=$(git -C "$root" log -1 --format=%ct)
TAG=again SOURCE_DATE_EPOCH=$((epoch + 1)) "$root/deploy/images/build.sh" router
[[ $(digest "router:$version") != "$(digest router:again)" ]] || die "another time gives the same digest"

for image in "${images[@]}"; do
  labels=$(field "$image:$version" '"\n".join(f"{k}={v}" for k, v in image["OCIv1"]["config"]["Labels"].items())')
  for label in "title=flotilla/$image" "version=$version" "revision=$(git -C "$root" rev-parse HEAD)" \
    "created=$(date --utc --date "@$epoch" +%Y-%m-%dT%H:%M:%SZ)" licenses=Apache-2.0; do
    grep -qxF "org.opencontainers.image.$label" <<<"$labels" || die "$image has no label $label: $labels"
  done
done

# Each library that is in an image is of a package on its list.
for image in router engine-cpu; do
  container=$(buildah from --pull-never "localhost/flotilla/$image:$version")
  mounted=$(buildah mount "$container")
  python3 - "$mounted" <<'CHECK' || { buildah rm "$container" >/dev/null; die "the list of $image is not complete"; }
import json, os, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1])
sbom = json.loads((root / "usr/share/doc/flotilla/sbom.spdx.json").read_text())
listed = {package["name"] for package in sbom["packages"]}
libraries = [os.path.realpath("/" / path.relative_to(root))
             for path in root.glob("usr/lib*/**/*.so*") if path.is_file()]
assert len(libraries) > 20, libraries
# dpkg knows a file with or without /usr in front.
asked = libraries + [library.removeprefix("/usr") for library in libraries]
found = subprocess.run(["dpkg-query", "--search", *asked], capture_output=True, text=True).stdout
owned = {path.removeprefix("/usr") for package, path in re.findall(r"^([^:,]+).*: (.*)$", found, re.M)
         if package in listed}
missing = {library.removeprefix("/usr") for library in libraries} - owned
assert not missing, missing
CHECK
  buildah rm "$container" >/dev/null
done
say "the same digests again; labels and lists are right"
