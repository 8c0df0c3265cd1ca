#!/usr/bin/env bash
# Shows that each target finds a bug: applies planted/TARGET.patch to a copy of the file it names,
# compiles that copy alone, links the target with it, and fuzzes from the seeds until it fails.
#
#   tests/fuzz/planted.sh [--seconds N] [TARGET...]     N: for each target, 300 if not said
#
# Needs the tree build/fuzz. Prints a line a target: name, executions and seconds until the finding.
# Fails if a target has no patch, or finds nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=300
[[ ${1:-} == --seconds ]] && { seconds=$2; shift 2; }
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile_patched TARGET FILE: to $work/planted.o, with the command that the build has for FILE, or for
# the unity source that includes it.
compile_patched() {
  local name=$1 file=$2 command
  mkdir -p "$work/$(dirname "$file")"
  cp "$file" "$work/$file"
  patch --quiet -d "$work" -p1 <"tests/fuzz/planted/$name.patch"
  command=$(ninja -C build/fuzz -t compdb | python3 -c '
import json, sys
wanted = "/" + sys.argv[1]
compiled = [e for e in json.load(sys.stdin) if " -c " in e["command"]]
own = [e for e in compiled if e["file"].endswith(wanted)]
unity = [e for e in compiled if "/unity_" in e["file"] and wanted + "\"" in open(e["file"]).read()]
print((own + unity)[0]["command"])' "$file")
  # The last words are: -o OBJECT -c SOURCE
  command=${command% -o *}
  (cd build/fuzz && eval "$command -I'$root' -o '$work/planted.o' -c '$work/$file'")
}

# An object on the command line goes before the same one in a library; what a unity object of that
# library has besides is needed still, so its second definition is let be.
link_planted() {
  local name=$1 command
  command=$(ninja -C build/fuzz -t commands "${name}_fuzz" | tail -n 1)
  command=${command/ -o / -Wl,--allow-multiple-definition "$work/planted.o" -o }
  (cd build/fuzz && eval "${command/-o fuzz\/${name}_fuzz/-o $work/planted_fuzz}")
}
export ASAN_OPTIONS=detect_odr_violation=0

missed=0
while read -r name max_len _; do
  (($# == 0)) || [[ " $* " == *" $name "* ]] || continue
  file=$(sed -n 's,^+++ b/,,p' "tests/fuzz/planted/$name.patch")
  compile_patched "$name" "$file"
  link_planted "$name"
  mkdir -p "$work/found"
  if "$work/planted_fuzz" -runs=0 -artifact_prefix="$work/" "tests/fuzz/corpus/$name" >"$work/log" 2>&1; then
    begin=$SECONDS
    "$work/planted_fuzz" -max_total_time="$seconds" -max_len="$max_len" -timeout=20 -print_final_stats=1 \
      -use_value_profile=1 -malloc_limit_mb=256 -artifact_prefix="$work/" "$work/found" \
      "tests/fuzz/corpus/$name" >"$work/log" 2>&1 && { missed=1; echo "$name: NOT FOUND"; continue; }
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log" | tail -n 1)
    took="$((SECONDS - begin)) s"
  else
    executions=0 took="the seeds"
  fi
  # Whatever else ended it is no finding.
  what=$(grep -oE -m 1 'CHECK failed: .*|ERROR: AddressSanitizer: [a-z-]+|runtime error: .*|ERROR: libFuzzer: .*' \
    "$work/log") || { missed=1; echo "$name: FAILED OTHERWISE"; tail -n 20 "$work/log"; continue; }
  printf '%-16s %9s executions, %s: %s\n' "$name" "$executions" "$took" "$what"
  rm -rf "$work/found"
done <build/fuzz/fuzz/targets.txt
exit $missed
