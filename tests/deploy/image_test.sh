#!/usr/bin/env bash
# image_test.sh: makes the images and asks them something (./flotilla image); then that a second build has the same
# digests, that one with another time has not, that the images say what they are and hold a list of what is in them, and
# that archives made by the commands of docs/deploying.md have the names that overlays/cpu asks for. The last needs a
# kubectl that can render; without one it is left out, which is said, and fails where CI is set.
#
# Errors: the first check that fails. Needs the default model and buildah. Run as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
images=(router engine-cpu engine-cpu-smollm2 model-smollm2)
say() { printf 'image: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
work=$(mktemp -d)
untag() {
  local image
  for image in "${images[@]}"; do buildah rmi "localhost/flotilla/$image:again" >/dev/null 2>&1 || true; done
}
cleanup() {
  untag
  rm -rf "$work"
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

# What a node's containerd would call the images of these archives, and what kubelets will ask it for.
archived() {
  local archive
  for archive in "$@"; do
    tar --extract --to-stdout --file "$archive" manifest.json |
      python3 -c 'import json, sys; print(*[tag for image in json.load(sys.stdin) for tag in image["RepoTags"]], sep="\n")'
  done | sort
}
# ask_manifests PYTHON: an expression with tests/deploy/manifests.py and policies.py.
ask_manifests() {
  PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/tests/deploy "$root/.cache/venv/bin/python" -c \
    "import manifests, policies, yaml; print($1)"
}
why_skipped=$(ask_manifests 'manifests.why_skipped()')
if [[ -n $why_skipped ]]; then say "archives were not compared: $why_skipped"; exit; fi
asked=$(ask_manifests '*sorted({image for _, image in policies.images(
  list(yaml.safe_load_all(manifests.rendered("overlays/cpu"))))}), sep="\n"')
mapfile -t commands < <(grep '^buildah push ' "$root/docs/deploying.md")
untag # an archive has all names of its image
((${#commands[@]} == 2)) || die "docs/deploying.md does not push two images"
for command in "${commands[@]}"; do (cd "$work" && bash -euc "$command" >&2); done
[[ $(archived "$work"/*.tar) == "$asked" ]] || die "archives hold $(archived "$work"/*.tar), pods ask for $asked"
# And it would be seen: an image that is not there, a name of Docker Hub's.
[[ $(archived "$work/router.tar") != "$asked" ]] || die "a missing archive is not seen"
buildah push --quiet "localhost/flotilla/router:$version" "docker-archive:$work/router.tar.hub:flotilla/router:$version"
[[ $(archived "$work/router.tar.hub" "$work/engine.tar") != "$asked" ]] || die "a name of Docker Hub's is not seen"
say "archives have the names that the manifests ask for"
