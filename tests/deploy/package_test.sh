#!/usr/bin/env bash
# package_test.sh: the Debian packages on a Debian 12 of their own, with systemd as process 1. Makes them, checks that
# they depend on all they load, that the units are tight and say what is wrong with a setting, that engine and router
# answer under all of the units' restrictions, that settings survive an upgrade, and that purge leaves nothing. Then
# docs/quickstart.md, word for word, with the package installed once more and with what the page asks for besides.
#
# Prints the units' exposure and the answer. Errors: the first check that fails, with the journal. The Debian (made with
# mmdebstrap, some minutes) is kept in /var/tmp/flotilla-package. Needs the default model. Run as root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
model=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf
kept=/var/tmp/flotilla-package
most_exposure=15 # tenths, as systemd-analyze has them; 0 to 20 is what it calls OK
wait_s=120
units=(flotilla-engine flotilla-router)
say() { printf 'package: %s\n' "$*" >&2; }

((EUID == 0)) || { say "error: this needs root"; exit 1; }
work=$(mktemp -d)
debian=$work/debian
group=/sys/fs/cgroup/flotilla-package-$$ # of the test's systemd; away from the machine's own
[[ -d /sys/fs/cgroup/unified ]] && group=/sys/fs/cgroup/unified/flotilla-package-$$
booted=
cleanup() {
  [[ -z $booted ]] || { kill -KILL "$booted" && wait "$booted"; } 2>/dev/null || true
  if [[ -d $group ]]; then
    until grep -qx 'populated 0' "$group/cgroup.events"; do sleep 0.1; done
    find "$group" -depth -type d -exec rmdir {} +
  fi
  rm -rf "$work"
}
trap cleanup EXIT
die() {
  say "error: $*"
  [[ -z $booted ]] || within journalctl --no-pager --lines 30 >&2 || true
  exit 1
}

# --- The Debian ---------------------------------------------------------------------------------------

unpack_debian() {
  if [[ ! -s $kept/debian.tar ]]; then
    mkdir -p "$kept"
    mmdebstrap --quiet --format=tar --variant=minbase --include=systemd bookworm "$kept/debian.tar.new" \
      "deb http://deb.debian.org/debian bookworm main" \
      "deb http://deb.debian.org/debian-security bookworm-security main"
    mv "$kept/debian.tar.new" "$kept/debian.tar"
  fi
  mkdir "$debian"
  tar -C "$debian" -xf "$kept/debian.tar"
  cp /etc/resolv.conf "$debian/etc/resolv.conf"
  rm -f "$debian/usr/sbin/policy-rc.d"
  echo 0123456789abcdef0123456789abcdef >"$debian/etc/machine-id" # else it is a first boot, which enables all units
}

# offline COMMAND...: in the Debian that is not booted.
offline() {
  unshare --mount --pid --fork --kill-child bash -ec '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "${@:2}"
  ' offline "$debian" "$@"
}

# All files and folders but those of dpkg's and systemd's own records.
list_files() {
  (cd "$debian" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/lib/systemd -o -path ./dev \
    -o -path ./proc -o -path ./sys -o -path ./run -o -path ./tmp \) -prune -o -printf '%p %y %#m %l\n' | sort)
}

# systemd's own view of a machine: mounts, processes, names, network and control groups of its own.
boot='
  mount --bind "$1" "$1"
  cd "$1"
  mount -t proc proc proc
  mount -t sysfs -o ro sysfs sys
  mount -t tmpfs tmpfs sys/fs/cgroup
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=0755 tmpfs run
  mount -t tmpfs tmpfs tmp
  mount -t tmpfs -o mode=0755 tmpfs dev
  for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
  mkdir dev/pts dev/shm
  ln -s pts/ptmx dev/ptmx
  ip link set lo up
  pivot_root . mnt
  umount --lazy /mnt
  exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=basic.target'
# To be called in a subshell, which it becomes.
boot_debian() {
  mkdir "$group"
  echo "$BASHPID" >"$group/cgroup.procs"
  exec unshare --mount --pid --cgroup --uts --ipc --net --fork --kill-child bash -ec "$boot" boot "$debian"
}

# within COMMAND...: in the booted Debian.
within() {
  nsenter --target "$(pgrep --parent "$booted")" --mount --pid --uts --ipc --net --cgroup \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# as_documented BEGINNING: the command of docs/packages.md that begins so, within.
as_documented() {
  local command
  command=$(grep -m 1 "^$1 " "$root/docs/packages.md") || die "docs/packages.md has no '$1 …'"
  within bash -c "$command"
}

property() { within systemctl show --property "$1" --value "$2"; }

# await WHAT COMMAND...: until it succeeds.
await() {
  local what=$1 deadline=$((SECONDS + wait_s))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || die "not within $wait_s s: $what"
    sleep 0.1
  done
}

# --- The checks ---------------------------------------------------------------------------------------

# A unit says which files it means, and systemd knows every key in it.
check_units() {
  local unit exposure
  offline systemd-analyze verify "${units[@]/%/.service}" >"$work/verify" 2>&1 || die "$(<"$work/verify")"
  [[ ! -s $work/verify ]] || die "systemd-analyze verify: $(<"$work/verify")"
  for unit in "${units[@]}"; do
    exposure=$(offline systemd-analyze security --offline=true --no-pager --threshold=$most_exposure "$unit.service") ||
      die "$unit is more exposed than $most_exposure tenths: $(tail -n 1 <<<"$exposure")"
    say "$unit: ${exposure##*→ }"
  done
}

# Status 2, a line that names the file, and no second try.
check_missing_model() {
  within systemctl start flotilla-engine || true
  await "an engine without its model has failed" within systemctl is-failed --quiet flotilla-engine
  [[ $(property ExecMainStatus flotilla-engine) == 2 && $(property NRestarts flotilla-engine) == 0 ]] ||
    die "an engine without its model does not end once, with status 2"
  within journalctl --unit flotilla-engine >"$work/journal"
  grep -q 'there is no file or folder' "$work/journal" || die "nobody says what is missing"
}

check_answers() {
  local answer choice
  answer=$(as_documented "flotilla ask") || die "no answer as soon as the units have started"
  echo "$answer"
  [[ $answer == *Paris* ]] || die "that is no answer"
  choice=$(nsenter --target "$(pgrep --parent "$booted")" --net \
    python3 "$root/deploy/images/choose.py" http://127.0.0.1:8000) || die "no choice"
  [[ $choice == red || $choice == blue ]] || die "'$choice' is none of the choices: the grammar's sandbox does not work"
}

# Whose units run, runs the new programs; what was changed in /etc/flotilla stays.
check_upgrade() {
  local before
  before=$(property MainPID flotilla-router)
  echo "# changed" >>"$debian/etc/flotilla/router.env"
  within dpkg --install /flotilla.deb >/dev/null 2>&1 || die "no second installation"
  grep -q '^# changed$' "$debian/etc/flotilla/router.env" || die "an upgrade changes settings"
  [[ $(property MainPID flotilla-router) != "$before" ]] || die "no restart"
  await "the router answers again" within flotilla ask --url http://127.0.0.1:8000 --max-tokens 1 Hello
}

# The page's own ports: the test's systemd has a network of its own, so its clients were installed before. The page's
# other way to get the model is a download of what is here already.
check_quickstart() {
  offline apt-get -qq install --no-install-recommends -y /flotilla.deb curl procps python3-venv >"$work/apt.log" 2>&1 ||
    die "what the quickstart asks for can't be installed: $(tail "$work/apt.log")"
  # By the pip of the tests, which knows how registries are reached from here.
  "$root/.cache/venv/bin/pip" download --quiet --dest "$debian/opt/wheels" openai grpcio grpcio-reflection \
    >"$work/pip.log" 2>&1 || die "no clients: $(tail "$work/pip.log")"
  offline python3 -m venv /opt/clients
  offline /opt/clients/bin/pip install --quiet --no-index --find-links /opt/wheels openai grpcio grpcio-reflection
  install -D -m 0644 -t "$debian/srv/.cache/flotilla" "$model"
  python3 "$root/tests/deploy/page_script.py" "$root/docs/quickstart.md" >"$debian/srv/quickstart.sh"
  within env HOME=/srv PATH=/opt/clients/bin:/usr/sbin:/usr/bin:/sbin:/bin bash /srv/quickstart.sh >"$work/quickstart" 2>&1 ||
    die "docs/quickstart.md: $(tail -n 40 "$work/quickstart")"
  say "docs/quickstart.md: $(grep -c '^ok ' "$work/quickstart") blocks, word for word"
}

unpack_debian
"$root/flotilla" package
cp "$root"/build/release/packages/flotilla_*.deb "$debian/flotilla.deb"
offline apt-get -qq update
offline apt-get -qq satisfy --no-install-recommends -y "$(dpkg-deb --field "$debian/flotilla.deb" Depends)" \
  >"$work/apt.log" 2>&1 || die "what the package depends on can't be installed: $(tail "$work/apt.log")"
list_files >"$work/before"
offline apt-get -qq install -y /flotilla.deb >"$work/dpkg.log" 2>&1 || die "$(<"$work/dpkg.log")"
for program in "$debian"/usr/libexec/flotilla/*; do
  offline "/usr/libexec/flotilla/${program##*/}" --help >/dev/null || die "${program##*/} can't be started"
done
check_units

(boot_debian) >"$work/boot.log" 2>&1 &
booted=$!
await "Debian has booted" within systemctl is-active --quiet basic.target
check_missing_model
install -D -m 0644 "$model" "$debian/srv/models/${model##*/}"
as_documented "systemctl enable" || die "the units don't start"
[[ $(property StatusText flotilla-engine) == "ready grpc="* && $(property StatusText flotilla-router) == serving ]] ||
  die "the units do not say what they do"
check_answers
check_upgrade

within dpkg --purge flotilla >"$work/dpkg.log" 2>&1 || die "$(<"$work/dpkg.log")"
[[ -z $(within bash -c 'grep --no-messages --files-with-matches ^flotilla /proc/[0-9]*/comm') ]] ||
  die "processes are left"
[[ -z $(within systemctl list-units --all --no-legend 'flotilla*') ]] || die "units are left"
rm -rf "$debian/srv/models"
list_files | diff "$work/before" - >&2 || die "files are left, or missing"
check_quickstart
say "installed, answered, upgraded, nothing was left, and the quickstart works"
