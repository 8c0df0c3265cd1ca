#!/bin/sh
# fill.sh MODELS SOURCES SHA256SUMS: downloads each file of SHA256SUMS into the folder MODELS, from the address that
# SOURCES has for it, a line each: NAME URL. A file that is there and right already stays.
#
# Engines may be reading the folder: a file gets its name only when it is whole and right, by a rename, so what they have
# open stays as it was. Errors: a file without an address, a download that fails, another checksum. For any POSIX
# shell (busybox), with curl and sha256sum.
set -eu

models=$1 sources=$2 sums=$3
die() { echo "error: $*" >&2; exit 1; }

# is_right FILE SUM
is_right() { echo "$2  $1" | sha256sum -c >/dev/null 2>&1; }

# The last line may have no end: `|| [ -n … ]`.
address_of() {
  while read -r file url || [ -n "$file" ]; do
    [ "$file" != "$1" ] || echo "$url"
  done <"$sources"
}

cd "$models"
while read -r sum name || [ -n "$sum" ]; do
  name=${name#\*}
  [ -n "$name" ] || continue
  if is_right "$name" "$sum"; then
    echo "$name: is there"
    continue
  fi
  url=$(address_of "$name")
  [ -n "$url" ] || die "$name: SOURCES has no address for it"
  case $name in */*) mkdir -p "${name%/*}" ;; esac
  # A transfer that stalls ends, and is tried again.
  curl --fail --location --silent --show-error --proto '=https' --proto-redir '=https' --retry 5 --retry-all-errors \
    --connect-timeout 30 --speed-limit 1024 --speed-time 60 --output "$name.part" "$url" </dev/null || die "$name: the download failed"
  if ! is_right "$name.part" "$sum"; then
    rm -f "$name.part"
    die "$name: what came has another checksum"
  fi
  mv "$name.part" "$name"
  echo "$name: downloaded"
done <"$sums"
