#!/usr/bin/env bash
# README's promise, checked from nothing: a minimal Debian 12 in a chroot, a fresh clone of this
# repository's HEAD, then README's first commands. Prints how long each took.
#
#   sudo tests/deploy/fresh_machine.sh [FOLDER]     needs mmdebstrap, git, 10 GB in FOLDER, network
#   sudo tests/deploy/fresh_machine.sh --with-tests [FOLDER]
#
# The folder is kept: a second run on it is a warm one. Nothing of this machine is used inside but its
# kernel, its resolver and its certificates.
set -euo pipefail

tests=
if [[ ${1:-} == --with-tests ]]; then tests=1; shift; fi
base=$(realpath -m "${1:-/var/tmp/flotilla-fresh-machine}")
source=$(cd "$(dirname "$0")/../.." && pwd)
root=$base/root

timed() {
  local what=$1 begin=$EPOCHSECONDS
  shift
  "$@"
  echo "== $what: $((EPOCHSECONDS - begin)) s"
}

make_root() {
  mkdir -p "$base"
  mmdebstrap --quiet --variant=minbase bookworm "$root" \
    "deb http://deb.debian.org/debian bookworm main" \
    "deb http://deb.debian.org/debian-security bookworm-security main"
}

# inside COMMAND: in mount and process namespaces of its own, so that nothing is left behind.
inside() {
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/dev/shm"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM="${TERM:-dumb}" \
      PIP_CERT=/etc/host-certificates.crt bash -c "cd /src && $2"' inside "$root" "$1"
}

[[ -d $root/usr ]] || timed "minimal Debian 12" make_root
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/host-certificates.crt"
if [[ -d $root/src ]]; then
  git -c safe.directory='*' -C "$root/src" pull --quiet "$source" HEAD
else
  git clone --quiet "$source" "$root/src"
fi
timed "packages and build" inside './flotilla serve --help >/dev/null'
timed "README's first question" inside './flotilla ask "What is the capital of France?" | tee /tmp/answer'
grep -q Paris "$root/tmp/answer" || { echo "not a sensible answer" >&2; exit 1; }
if [[ -n $tests ]]; then timed "all tests" inside './flotilla test'; fi
