#!/usr/bin/env bash
# Replays each target's seeds and prints how many lines of its parsers they reach; fails below 90 %.
#
#   tests/fuzz/coverage.sh [--show] [TARGET...]     --show: also the lines that none reaches
#
# The preset fuzz is always built with llvm's counters. Needs llvm-profdata and llvm-cov of the
# compiler's version (Debian: llvm-19; LLVM_BIN names another folder).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

minimum=90
show=
[[ ${1:-} == --show ]] && { show=1; shift; }
bin=${LLVM_BIN:-/usr/lib/llvm-19/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# lines TARGET PARSER: "reached all" of its lines, over all instances of a template. (Paths in the binary
# may be relative, so llvm-cov can't be asked for one file.)
lines() {
  awk -F'[:,]' -v parser="/$2" '
    /^SF:/ { ours = substr($0, length($0) - length(parser) + 1) == parser }
    ours && /^DA:/ { hits[$2] += $3 }
    END { for (line in hits) { all++; if (hits[line] > 0) reached++; else missed = missed " " line }
          print reached + 0, all + 0, missed }' "$work/$1.lcov"
}

too_low=0
while read -r name _ parsers; do
  (($# == 0)) || [[ " $* " == *" $name "* ]] || continue
  LLVM_PROFILE_FILE=$work/$name.raw timeout --foreground --signal=ABRT --kill-after=20 300 \
    "build/fuzz/fuzz/${name}_fuzz" -runs=0 "tests/fuzz/corpus/$name" >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; exit 1; }
  "$bin/llvm-profdata" merge -o "$work/$name.prof" "$work/$name.raw"
  "$bin/llvm-cov" export -format=lcov -instr-profile="$work/$name.prof" \
    "build/fuzz/fuzz/${name}_fuzz" >"$work/$name.lcov" 2>/dev/null
  for parser in $parsers; do
    read -r reached all missed < <(lines "$name" "$parser")
    ((all > 0)) || { echo "coverage.sh: $name knows nothing of $parser" >&2; exit 1; }
    percent=$((reached * 1000 / all))
    verdict=
    if ((percent < minimum * 10)); then verdict="  below $minimum %" too_low=1; fi
    printf '%-16s %-42s %4d of %4d lines %3d.%d %%%s\n' \
      "$name" "$parser" "$reached" "$all" $((percent / 10)) $((percent % 10)) "$verdict"
    if [[ -n $show ]]; then
      for line in $(tr ' ' '\n' <<<"$missed" | sort -n); do
        printf '%6d  %s\n' "$line" "$(sed -n "${line}p" "$parser")"
      done
    fi
  done
done <build/fuzz/fuzz/targets.txt
exit $too_low
