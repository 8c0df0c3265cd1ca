#!/usr/bin/env bash
# Flotilla and llama-server under the same load on this machine: output tokens a second, side by side.
#
#   tests/bench/compare_llama_server.sh [CLIENTS…]        default: 1 8 32
#
# For each number of clients the two run in turn, three times each, alone on the machine, with prompts
# of 128 words and answers of 64 tokens that no run has seen before. Printed are all runs, the medians
# and their ratio; the exit status is 1 if a ratio is below 1.0. llama-server gets -t 2 and one slot a
# client; it is built once by build_llama.sh.
#
# Environment: LOAD, the load generator (default ../shared/bench/load.py, beside this repository);
# MODEL, a GGUF file; RUNS; FLOTILLA_FLAGS, more flags for `flotilla serve`. Python needs aiohttp
# (tests/requirements.txt has it).
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
load=${LOAD:-$root/../shared/bench/load.py}
model=${MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf}
runs=${RUNS:-3}
clients=("$@")
((${#clients[@]})) || clients=(1 8 32)
python=$root/.cache/venv/bin/python
flotilla=$root/build/release/bin/flotilla
for file in "$load" "$model" "$python" "$flotilla"; do
  [[ -e $file ]] || { echo "error: no $file; run ./flotilla test once, or set LOAD or MODEL" >&2; exit 1; }
done
llama=$("$root/tests/bench/build_llama.sh")

work=$(mktemp -d)
server=
stop_server() {
  if [[ -n $server ]]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
  server=
}
trap 'stop_server; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# wait_for SECONDS COMMAND…: until it succeeds or the server is gone.
wait_for() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > deadline)) || ! kill -0 "$server" 2>/dev/null; then
      tail -n 20 "$work/log" >&2
      echo "error: the server did not become ready" >&2
      exit 1
    fi
    sleep 0.1
  done
}

start_llama() { # CLIENTS
  local port
  port=$(free_port)
  "$llama/llama-server" -m "$model" -t 2 -np "$1" -c $(($1 * 512)) --host 127.0.0.1 --port "$port" \
    >"$work/log" 2>&1 &
  server=$!
  url=http://127.0.0.1:$port name=m
  wait_for 60 "$python" -c "import urllib.request as u; u.urlopen('$url/health')"
}

start_flotilla() { # CLIENTS
  # shellcheck disable=SC2086
  "$flotilla" serve --model "$model" --port 0 --grpc-port 0 --metrics-port 0 ${FLOTILLA_FLAGS:-} \
    >"$work/ready" 2>"$work/log" &
  server=$!
  wait_for 60 grep -q '^ready' "$work/ready"
  url=$(sed -n 's/^ready.* http=\([^ ]*\).*/\1/p' "$work/ready")
  name=$("$python" -c "import json, urllib.request as u
print(json.load(u.urlopen('$url/v1/models'))['data'][0]['id'])")
}

# measure ENGINE CLIENTS RUN: prints the load generator's line, appends tok/s to $work/ENGINE-CLIENTS.
measure() {
  local engine=$1 count=$2 run=$3 requests line
  requests=$((count * 2 > 8 ? count * 2 : 8))
  "start_$engine" "$count"
  line=$("$python" "$load" "$url" --model "$name" --concurrency "$count" --requests "$requests" \
    --in-tokens 128:128 --out-tokens 64:64 --seed $((1000 * count + run)) --label "$engine")
  stop_server
  echo "$line"
  "$python" - "$line" "$requests" >>"$work/$engine-$count" <<'PY'
import json, sys
line = json.loads(sys.argv[1])
if line["ok"] != int(sys.argv[2]) or line["err"]:
    sys.exit(f"error: {line['err']} requests failed: {line['err1']}")
print(line["out_tok_s"])
PY
}

echo "commit $(git -C "$root" rev-parse --short HEAD), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)," \
  "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(grep -qw avx512_vnni /proc/cpuinfo && echo AVX-512 VNNI || echo AVX2)"
for count in "${clients[@]}"; do
  for ((run = 1; run <= runs; ++run)); do
    measure llama "$count" "$run"
    measure flotilla "$count" "$run"
  done
done
"$python" - "$work" "${clients[@]}" <<'PY'
import pathlib, statistics, sys
folder, failed = pathlib.Path(sys.argv[1]), False
print("clients  llama-server  flotilla  ratio   (output tok/s, medians)")
for count in sys.argv[2:]:
    peer, ours = (statistics.median(map(float, (folder / f"{engine}-{count}").read_text().split()))
                  for engine in ("llama", "flotilla"))
    failed = failed or ours < peer
    print(f"{count:>7}  {peer:>12.1f}  {ours:>8.1f}  {ours / peer:>5.2f}")
sys.exit(1 if failed else 0)
PY
