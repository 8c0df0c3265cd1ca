# `./flotilla test`, which sources it: builds what the tests of each preset need, runs them, and says what ran.

results=$root/.cache/results
num_left_out=0 # tests that there was no time for

# check_label PRESET LABEL: a mistyped one would run no test at all.
check_label() {
  local labels
  labels=$(cd "$root/build/$1" && ctest --print-labels | sed -n 's/^  //p')
  grep -qxF -e "$2" <<<"$labels" ||
    die "test: no test has the label '$2'; there are ${labels//$'\n'/, }"
}

# run_ctest PRESET RESULTS CTEST_ARGUMENT...: failures are counted, not fatal, so that all presets run.
run_ctest() {
  local preset=$1 to=$2
  shift 2
  mkdir -p "$results"
  local runner=()
  # GCC 12's ThreadSanitizer can't place its shadow where the kernel randomises with more bits.
  [[ $preset == tsan && $(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28) -gt 28 ]] &&
    runner=(setarch --addr-no-randomize)
  say "testing build/$preset"
  (cd "$root/build/$preset" &&
    "${runner[@]}" ctest --output-on-failure --parallel "$(nproc)" --no-tests=error \
      --output-junit "$results/$to.xml" "$@") || failed_presets+=("$to")
  cp "$root/build/$preset/Testing/Temporary/LastTest.log" "$results/$to.log" 2>/dev/null || true
}

# clang-tidy over everything that is compiled; what was clean and has not changed is not repeated.
run_clang_tidy() {
  need_packages lint "${lint_packages[@]}"
  say "running clang-tidy"
  python3 "$root/tests/house/tidy.py" --jobs "$(jobs)" >&2 || failed_presets+=(clang-tidy)
}

# run_fuzz FULL: each fuzz target's seeds, then a minute for all (FULL: ten), and the seeds' coverage. It takes no longer
# than asan's tests, and about as long as tsan's.
run_fuzz() {
  local full=$1 seconds=60 count
  [[ -n $full ]] && seconds=600
  count=$(grep -c '^flotilla_fuzz(' "$root/tests/fuzz/CMakeLists.txt")
  has_time "${asan_seconds:-${tsan_seconds:-0}}" "$count" "fuzz targets" || return 0
  need_packages fuzz "${fuzz_packages[@]}"
  configure fuzz any
  build fuzz fuzz_targets
  say "fuzzing for $seconds s"
  "$root/tests/fuzz/run.sh" --seconds "$seconds" || failed_presets+=(fuzz)
  "$root/tests/fuzz/coverage.sh" || failed_presets+=("fuzz's coverage")
}

# test_preset PRESET LABEL RESULTS CTEST_ARGUMENT...: the tests of a label (none: all) in a build.
test_preset() {
  local preset=$1 label=$2 to=$3
  shift 3
  configure "$preset" ON
  if [[ -n $label ]]; then check_label "$preset" "$label"; fi
  build "$preset" "${label:+tests_}${label:-all}"
  run_ctest "$preset" "$to" "$@" ${label:+-L "^$label\$"}
}

# has_time SECONDS COUNT WHAT: with --minutes (.ci/run), whether so many seconds are left. If not, that is what a slow
# machine leaves out: it says so and counts the tests as skipped.
has_time() {
  if [[ -z $minutes ]] || ((SECONDS + $1 <= minutes * 60)); then return; fi
  say "left out: $2 $3, since $((SECONDS / 60)) of $minutes minutes are gone"
  num_left_out=$((num_left_out + $2))
  return 1
}

# count_tests PRESET LABEL: in a build that is configured.
count_tests() { (cd "$root/build/$1" && ctest -N -L "^$2\$" | sed -n 's/^Total Tests: //p'); }

# With AddressSanitizer there is two and a half times as much to compile as with ThreadSanitizer, right before it.
has_time_for_asan() {
  [[ -z ${tsan_seconds:-} ]] ||
    has_time "$((5 * tsan_seconds / 2))" "$(count_tests release asan)" "tests labelled asan"
}

# What speaks HTTP or gRPC (the router, the load generator) takes up to two and a half times as long under AddressSanitizer
# as all else with the label asan (on a Zen 3; as long on a Zen 4).
test_asan_network() {
  has_time "$((5 * asan_seconds / 2))" "$(count_tests asan asan_network)" "tests labelled asan_network" || return 0
  test_preset asan asan_network asan_network
}

# summarise RESULTS...: the closing line: what ran, over all presets.
summarise() {
  local preset file total=$num_left_out failed=0 skipped=$num_left_out t f s detail=
  for preset in "$@"; do
    file=$results/$preset.xml
    [[ -e $file ]] || continue
    read -r t f s < <(awk -F'"' '
      /<testcase/ { exit }
      { for (i = 1; i < NF; i += 2) {
          if ($i ~ /tests=$/) t = $(i + 1)
          if ($i ~ /failures=$/) f = $(i + 1)
          if ($i ~ /skipped=$/ || $i ~ /disabled=$/) s += $(i + 1) } }
      END { print t + 0, f + 0, s + 0 }' "$file")
    total=$((total + t)) failed=$((failed + f)) skipped=$((skipped + s))
    detail+=", $preset $t"
  done
  say "tests: $((total - failed - skipped)) passed, $failed failed, $skipped skipped (${detail#, })"
  # A program that leaves out one of its cases has passed; the case itself prints why.
  for preset in "$@"; do
    detail=$(sed -nE 's/^\[  SKIPPED \] (\S+) \([0-9]+ ms\)$/\1/p; s/^.* ([0-9]+) skipped.* in .*s.*$/\1 of pytest/p' \
      "$results/$preset.log" 2>/dev/null | sort -u | paste -sd ' ' || true)
    [[ -z $detail ]] || say "cases left out within tests of $preset: $detail"
  done
  ((${#failed_presets[@]} == 0)) || die "failed: ${failed_presets[*]}"
}

command_test() {
  local label= preset= full= faults= minutes= tsan_seconds= asan_seconds= begin presets=() select=()
  while (($#)); do
    case $1 in
      --label) label=${2:?--label needs a name}; shift 2 ;;
      --preset) preset=${2:?--preset needs asan, tsan or fuzz}; shift 2 ;;
      --full) full=1; shift ;;
      --faults) faults=1; shift ;;
      --minutes)
        minutes=${2:-}
        [[ $minutes =~ ^[1-9][0-9]{0,5}$ ]] || die "test: --minutes needs a number, not '$minutes'"
        shift 2
        ;;
      --gpu) preset=cuda label=gpu; shift ;;
      *) die "test: unknown argument '$1'; it takes --label NAME, --preset asan|tsan|fuzz|release, --full, --minutes N, --faults, --gpu" ;;
    esac
  done
  [[ " release asan tsan fuzz cuda " == *" ${preset:-release} "* ]] ||
    die "test: no preset '$preset'; asan, tsan, fuzz or release"
  [[ $preset != cuda ]] || need_nvcc
  [[ $preset != fuzz || -z $label ]] || die "test: the preset fuzz has no labels"
  need_packages build "${build_packages[@]}"
  need_packages test "${test_packages[@]}"
  need_model
  if [[ -n $full || $label == full ]]; then need_packages full "${full_packages[@]}"; need_gemma; fi
  need_test_requirements
  [[ -n $label && $label != @(deploy|full) ]] || PATH=$("$venv/bin/python" -B "$root/tests/deploy/fetch_kubectl.py" "$cache")$PATH
  export FLOTILLA_TEST_MODEL=${FLOTILLA_TEST_MODEL:-$cache/$model_file}
  export FLOTILLA_TEST_GEMMA=${FLOTILLA_TEST_GEMMA:-$cache/$gemma_file}
  export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$root/tests/tsan_suppressions.txt}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
  if [[ -n $faults ]]; then
    configure release ON && build release programs
    FLOTILLA_BIN_DIR=$root/build/release/bin exec "$venv/bin/python" "$root/tests/faults/matrix.py" --full
  fi
  rm -rf "$results"
  failed_presets=()
  [[ -n $full || $label == full ]] || select+=(-LE '^full$')
  if [[ -n $preset ]]; then presets=("$preset"); else presets=(release tsan asan fuzz); fi
  # A label alone means a quick look: the release build only.
  [[ -n $label && -z $preset ]] && presets=(release)
  for preset in "${presets[@]}"; do
    if [[ $preset == fuzz ]]; then run_fuzz "$full"; continue; fi
    local only=$label
    [[ -z $only && -z $full && $preset != release ]] && only=$preset
    if [[ $preset == asan ]]; then has_time_for_asan || continue; fi
    begin=$SECONDS
    test_preset "$preset" "$only" "$preset" "${select[@]}"
    if [[ $preset == tsan && $only == tsan && -z $label ]]; then tsan_seconds=$((SECONDS - begin)); fi
    if [[ $preset == asan && $only == asan && -z $label ]]; then asan_seconds=$((SECONDS - begin)); fi
  done
  # Last, since it is what a slow machine may have no time for.
  if [[ -n $asan_seconds ]]; then test_asan_network; presets+=(asan_network); fi
  [[ -n $full ]] && run_clang_tidy
  summarise "${presets[@]}"
}
