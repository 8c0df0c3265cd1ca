#!/usr/bin/env bash
# Flotilla with two sets of flags under the same load in turn, as compare_llama_server.sh does it.
#
#   tests/bench/compare_flags.sh "FLAGS" "OTHER FLAGS" [CLIENTS…]     default: 1 8 32
#   tests/bench/compare_flags.sh "--tp 1 --threads 2" "--tp 2 --threads 1"
#
# The exit status is 1 if the other flags are slower anywhere. Environment: compare.sh's.
source "$(dirname "$0")/compare.sh"
(($# >= 2)) || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
first=$1 second=$2
shift 2

# shellcheck disable=SC2086
start_first() { start_flotilla $first; }
# shellcheck disable=SC2086
start_second() { start_flotilla $second; }

engines=(first second)
compare "$@"
