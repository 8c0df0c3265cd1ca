#!/usr/bin/env bash
# Flotilla and llama-server under the same load on this machine: output tokens a second, side by side.
#
#   tests/bench/compare_llama_server.sh [CLIENTS…]        default: 1 8 32
#
# For each number of clients the two run in turn, three times each, alone on the machine, with prompts
# of 128 words and answers of 64 tokens that no run has seen before. Printed are all runs, the medians
# and their ratio; the exit status is 1 if a ratio is below 1.0. llama-server gets -t 2 and one slot a
# client; it is built once by build_llama.sh. Environment: compare.sh's, and FLOTILLA_FLAGS.
source "$(dirname "$0")/compare.sh"
llama=$("$root/tests/bench/build_llama.sh")

start_llama() { # CLIENTS
  local port
  port=$(free_port)
  "$llama/llama-server" -m "$model" -t 2 -np "$1" -c $(($1 * 512)) --host 127.0.0.1 --port "$port" \
    >"$work/log" 2>&1 &
  server=$!
  url=http://127.0.0.1:$port name=m
  wait_for 60 "$python" -c "import urllib.request as u; u.urlopen('$url/health')"
}

# shellcheck disable=SC2086
start_ours() { start_flotilla ${FLOTILLA_FLAGS:-}; }

engines=(llama ours)
compare "$@"
