#!/usr/bin/env bash
# try.sh: starts an engine and a router from the images that build.sh made, as the manifests would have them run (user
# 65532, read-only root, no capabilities, no new privileges, the same writable folders of the same sizes) and with 64 KiB
# of /dev/shm, asks them something, once with a grammar (which is compiled in a sandbox of its own), looks whether they
# are confined as said (confined.py), takes a flight recording out of the engine, reads both metrics pages, compares the
# model with its checksum, and stops both in order. Limits of CPU and memory, the seccomp profile and the network are not
# the pod's.
#
# By unshare and chroot, not `buildah run`: without an OCI runtime that has only the isolation "chroot", in which
# (1.28) the root can be written to, /dev/shm is the machine's whatever --shm-size says, CAP_SETUID stays in the bounding
# set and new privileges may be gained.
#
# Prints the answer. Errors: an image that does not start, an answer without "Paris", a process that may do more than it
# should, an exit status that is not 0. Environment: TAG, as build.sh. Run as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tag=${TAG:-$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")}
wait_s=120
# The volumes of the pods (tests/deploy/manifests_test.py compares), and /dev/shm, of which kubelets give more.
engine_volumes='run/flotilla=16m var/lib/flotilla=1040m'
router_volumes=''
shm=dev/shm=64k
export BUILDAH_ISOLATION=chroot
say() { printf 'image: %s\n' "$*" >&2; }

work=$(mktemp -d)
containers=() running=()
cleanup() {
  local pid
  for pid in "${running[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  ((${#containers[@]} == 0)) || buildah rm "${containers[@]}" >/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
die() {
  say "error: $*"
  tail -n 20 "$work"/*.log >&2 || true
  exit 1
}

# mount_image IMAGE: sets `mounted`, its root file system.
mount_image() {
  local container
  container=$(buildah from --pull-never "localhost/flotilla/$1:$tag")
  containers+=("$container")
  mounted=$(buildah mount "$container")
}

# The pod's view of a root file system, then the command, as process 1 of its own.
inside='
  folder=$1 volumes=$2 shm=$3 program=$4; shift 4
  mount --bind "$folder" "$folder"
  for volume in $volumes; do # as an emptyDir with the fsGroup 65532
    mount -t tmpfs -o "size=${volume#*=},mode=2777,gid=65532" tmpfs "$folder/${volume%=*}"
  done
  mount -t proc proc "$folder/proc"
  mount --rbind /sys "$folder/sys"
  mount -t tmpfs -o mode=0755 tmpfs "$folder/dev"
  for device in null zero urandom; do touch "$folder/dev/$device"; mount --bind "/dev/$device" "$folder/dev/$device"; done
  mkdir "$folder/${shm%=*}"
  mount -t tmpfs -o "size=${shm#*=},mode=1777,nosuid,nodev,noexec" tmpfs "$folder/${shm%=*}"
  mount -o remount,bind,ro "$folder"
  cd /
  # In this order: each step needs what the next ones take away.
  exec env -i PATH=/usr/bin XDG_RUNTIME_DIR=/run/flotilla \
    /usr/sbin/capsh --quiet --inh= --noamb --chroot="$folder" --groups=65532 --gid=65532 --drop=all --uid=65532 \
    --no-new-privs --shell="$program" -- "$@"'
# sandboxed FOLDER VOLUMES PROGRAM ARGUMENT...: to be called in a subshell, which it becomes.
sandboxed() { exec unshare --mount --pid --fork --kill-child bash -euc "$inside" inside "$1" "$2" "$shm" "${@:3}"; }

# start NAME FOLDER VOLUMES PROGRAM ARGUMENT...: in the background, its output in a log.
start() {
  local name=$1
  shift
  : >"$work/$name.log"
  (sandboxed "$@") >"$work/$name.log" 2>&1 &
  running+=($!)
}

# wait_for NAME PATTERN: sets `found`, the first match of the (extended) pattern's group in the log.
wait_for() {
  local deadline=$((SECONDS + wait_s))
  until found=$(sed -nE "s/.*$2.*/\1/p" "$work/$1.log" | head -n 1) && [[ -n $found ]]; do
    ((SECONDS < deadline)) || die "$1 did not say '$2' within $wait_s s"
    sleep 0.1
  done
}

# check_confined NAME PID VOLUMES: the process within, and all that it has started.
check_confined() {
  local volumes
  read -ra volumes <<<"$3"
  python3 "$root/deploy/images/confined.py" "$(pgrep -P "$2")" "$shm" "${volumes[@]}" >&2 ||
    die "$1 is not as confined as a pod"
}

# within PID PROGRAM ARGUMENT...: what `kubectl exec` does in the pod whose process 1 has that parent.
within() {
  nsenter --target "$(pgrep -P "$1")" --mount --pid --root --wdns=/ --setuid=65532 --setgid=65532 "${@:2}"
}

# stop PID NAME: SIGTERM for the process within; it must end by itself, with status 0.
stop() {
  kill -TERM "$(pgrep -P "$1")"
  wait "$1" || die "$2 ended with status $?"
}

mount_image engine-cpu-smollm2
engine=$mounted
mount_image router
router=$mounted
model=/models/SmolLM2-135M-Instruct.Q4_1.gguf

sed "s#  #  /models/#" "$root/deploy/components/model-pvc/SHA256SUMS" >"$engine/SHA256SUMS"
(sandboxed "$engine" "" /usr/bin/sha256sum --check --strict /SHA256SUMS) >&2
start engine "$engine" "$engine_volumes" /usr/bin/flotilla engine --grpc-port=0 --metrics-port=0 --model="$model" \
  --pack-cache-dir=off --flight-recorder-dir=/var/lib/flotilla
wait_for engine 'ready grpc=([0-9.:]+) metrics=.*'
grpc=$found
wait_for engine 'ready .* metrics=(http:\S+)'
metrics=("$found")
printf '127.0.0.1 engine\n' >"$router/etc/hosts" # a name to look up, as the manifests' router has
start router "$router" "$router_volumes" /usr/bin/flotilla-router --port=0 --grpc-port=0 --metrics-port=0 \
  --replica-dns="engine:${grpc##*:}"
wait_for router 'metrics port=([0-9]+)'
metrics+=("http://127.0.0.1:$found/metrics")
wait_for router 'ready http=([0-9]+)'
url=http://127.0.0.1:$found
answer=$(sandboxed "$engine" "" /usr/bin/flotilla ask --url "$url" "What is the capital of France?")
echo "$answer"
[[ $answer == *Paris* ]] || die "that is no answer"
choice=$(python3 "$root/deploy/images/choose.py" "$url")
[[ $choice == red || $choice == blue ]] || die "'$choice' is none of the choices: the grammar's sandbox does not work"
check_confined engine "${running[0]}" "$engine_volumes"
check_confined router "${running[1]}" "$router_volumes"
# This script is not confined, and that is seen.
! python3 "$root/deploy/images/confined.py" $$ "$shm" >/dev/null || die "confined.py takes anything for confined"
# A flight recording is taken out of the engine that runs, by the image's programs alone, and can be run again there.
within "${running[0]}" /usr/bin/flotilla flight >"$work/engine.flight" || die "no flight recording"
replayed=$(within "${running[0]}" /usr/bin/flotilla replay /proc/self/fd/0 <"$work/engine.flight") ||
  die "the flight recording can't be run again: $replayed"
[[ $replayed == *"every decision is the same"* ]] || die "the flight recording says $replayed"
for page in "${metrics[@]}"; do
  python3 -c 'import sys, urllib.request
page = urllib.request.urlopen(sys.argv[1], timeout=10).read()
sys.exit(b"\nflotilla_build_info{" not in page)' "$page" || die "$page has no metrics of Flotilla"
done
stop "${running[1]}" router
stop "${running[0]}" engine
running=()
say "an engine and a router from the images answered and stopped in order"
