#!/usr/bin/env bash
# Brings tests/fuzz/corpus up to date. For each target: what fuzz_make_seeds writes and the seeds that have
# a name stay as far as they reach something new; then come, under their hashes, the smallest of the
# others and of what tests/fuzz/run.sh has found (.cache/fuzz) that reach what those do not.
#
#   tests/fuzz/make_seeds.sh [TARGET...]      needs the tree build/fuzz
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

ninja -C build/fuzz fuzz_make_seeds fuzz_targets
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build/fuzz/fuzz/fuzz_make_seeds "$work/made"

# merge TARGET MAX_LEN FOLDER...: into the first folder.
merge() {
  build/fuzz/fuzz/"$1_fuzz" -set_cover_merge=1 -use_counters=0 -max_len="$2" "${@:3}" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; exit 1; }
}

while read -r name max_len _; do
  (($# == 0)) || [[ " $* " == *" $name "* ]] || continue
  seeds=tests/fuzz/corpus/$name kept=$work/kept named=$work/named
  mkdir -p "$kept" "$named" "$seeds" ".cache/fuzz/$name/found"
  [[ ! -d $work/made/$name ]] || cp "$work/made/$name"/* "$named"
  for file in "$seeds"/*; do
    [[ ! -e $file || $(basename "$file") =~ ^(made-.*|[0-9a-f]{40})$ ]] || cp "$file" "$named"
  done
  merge "$name" "$max_len" "$kept" "$named"
  for file in "$kept"/*; do # libFuzzer has renamed them to their hashes
    for original in "$named"/*; do
      if cmp -s "$file" "$original"; then
        mv "$file" "$kept/$(basename "$original")"
        break
      fi
    done
  done
  merge "$name" "$max_len" "$kept" "$seeds" ".cache/fuzz/$name/found"
  rm -rf "$seeds" "$named"
  mv "$kept" "$seeds"
  echo "$name: $(find "$seeds" -type f | wc -l) seeds, $(cat "$seeds"/* | wc -c) bytes"
done <build/fuzz/fuzz/targets.txt
