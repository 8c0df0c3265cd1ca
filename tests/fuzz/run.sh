#!/usr/bin/env bash
# Runs libFuzzer's targets of build/fuzz: each replays its seeds, then all share the time.
#
#   tests/fuzz/run.sh [--seconds N | --runs N] [--jobs N] [TARGET...]
#
# --seconds: in total, 60 if not said; --runs: executions of each target instead. A finding prints the
# input's file and the command that repeats it. What the fuzzer learns stays in .cache/fuzz/: the
# seeds in tests/fuzz/corpus change by tests/fuzz/make_seeds.sh only.
# Writes .cache/results/fuzz.xml (JUnit's counts) and .cache/fuzz/figures.txt, a line a target: name,
# executions, seconds, features.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=60 runs= jobs=2 targets=()
while (($#)); do
  case $1 in
    --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
    --runs) runs=${2:?--runs needs a number}; shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    -*) echo "run.sh: unknown argument '$1'" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done

list=build/fuzz/fuzz/targets.txt
[[ -e $list ]] || { echo "run.sh: no $list; build it: ./flotilla test --preset fuzz" >&2; exit 2; }
declare -A max_len=()
known=()
while read -r name length _; do known+=("$name") max_len[$name]=$length; done <"$list"
((${#targets[@]})) || targets=("${known[@]}")
for name in "${targets[@]}"; do
  [[ -n ${max_len[$name]:-} ]] || { echo "run.sh: no target '$name': ${known[*]}" >&2; exit 2; }
done

symbolizer=/usr/lib/llvm-19/bin/llvm-symbolizer
[[ ! -x $symbolizer ]] || export ASAN_SYMBOLIZER_PATH=${ASAN_SYMBOLIZER_PATH:-$symbolizer}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
limits=(-timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=256 -print_final_stats=1 -use_value_profile=1)
patience=300 each=0
if [[ -n $runs ]]; then
  limits+=("-runs=$runs")
else
  each=$((seconds * jobs / ${#targets[@]}))
  limits+=("-max_total_time=$((each > 0 ? each : 1))")
fi

# bounded SECONDS COMMAND...: libFuzzer's limits end an input that takes long, not a process that hangs
# between two or at its end. SIGABRT makes it say where. 0: no limit.
bounded() { timeout --foreground --signal=ABRT --kill-after=20 "$@"; }

# fuzz TARGET: its seeds alone, then from them on; the log is .cache/fuzz/TARGET/log.
fuzz() {
  local name=$1 binary=build/fuzz/fuzz/$1_fuzz folder=.cache/fuzz/$1 seeds=tests/fuzz/corpus/$1
  mkdir -p "$folder/found"
  rm -f "$folder/figures" "$folder/seconds"
  local begin=$SECONDS
  bounded $patience "$binary" -runs=0 "${limits[@]:0:3}" -artifact_prefix="$folder/" "$seeds" \
    >"$folder/log" 2>&1 &&
    bounded $((runs ? 0 : each + patience)) "$binary" "${limits[@]}" -max_len="${max_len[$name]}" \
      -artifact_prefix="$folder/" "$folder/found" "$seeds" >>"$folder/log" 2>&1 || return
  echo $((SECONDS - begin)) >"$folder/seconds"
}

# report TARGET: the figures, or what was found; false then.
report() {
  local name=$1 folder=.cache/fuzz/$1 input executions features
  if [[ ! -e $folder/seconds ]]; then
    grep -E -m 12 '(ERROR|SUMMARY|runtime error|CHECK failed|#[0-9]+ 0x)' "$folder/log" >&2 ||
      tail -n 12 "$folder/log" >&2
    input=$(sed -n 's/.*Test unit written to //p' "$folder/log" | tail -n 1)
    echo "fuzz: $name FAILED; its log is $folder/log" >&2
    [[ -z $input ]] || echo "fuzz: the input is $input; again: build/fuzz/fuzz/${name}_fuzz $input" >&2
    return 1
  fi
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/log" | tail -n 1)
  features=$(sed -n 's/.* ft: \([0-9]*\).*/\1/p' "$folder/log" | tail -n 1)
  printf '%-16s %9s executions %5s s %6s features\n' \
    "$name" "$executions" "$(<"$folder/seconds")" "$features"
}

mkdir -p .cache/results .cache/fuzz
for name in "${targets[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
  fuzz "$name" &
done
wait || true
failed=0
: >.cache/fuzz/figures.txt
for name in "${targets[@]}"; do
  report "$name" | tee -a .cache/fuzz/figures.txt || failed=$((failed + 1))
done
printf '<testsuite name="fuzz" tests="%d" failures="%d" disabled="0" skipped="0">\n</testsuite>\n' \
  "${#targets[@]}" "$failed" >.cache/results/fuzz.xml
((failed == 0))
