# Sourced by compare_llama_server.sh and compare_flags.sh: two engines under the same load in turn.
#
# The caller sets `engines` (two names) and defines start_<name> CLIENTS for each, which sets server
# (its process), url and name (the model's); start_flotilla FLAG… helps. Environment: LOAD, the load
# generator (default ../shared/bench/load.py, beside this repository); MODEL, a GGUF file; RUNS.
# Python needs aiohttp (tests/requirements.txt has it).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
load=${LOAD:-$root/../shared/bench/load.py}
model=${MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf}
runs=${RUNS:-3}
python=$root/.cache/venv/bin/python
flotilla=$root/build/release/bin/flotilla
for file in "$load" "$model" "$python" "$flotilla"; do
  [[ -e $file ]] || { echo "error: no $file; run ./flotilla test once, or set LOAD or MODEL" >&2; exit 1; }
done

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

start_flotilla() { # FLAG…
  "$flotilla" serve --model "$model" --port 0 --grpc-port 0 --metrics-port 0 "$@" \
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

# compare CLIENTS…: the exit status is 1 if the second engine is the slower one anywhere.
compare() {
  local clients=("$@") count run
  ((${#clients[@]})) || clients=(1 8 32)
  echo "commit $(git -C "$root" rev-parse --short HEAD), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)," \
    "$(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $(grep -qw avx512_vnni /proc/cpuinfo && echo AVX-512 VNNI || echo AVX2)"
  for count in "${clients[@]}"; do
    for ((run = 1; run <= runs; ++run)); do
      measure "${engines[0]}" "$count" "$run"
      measure "${engines[1]}" "$count" "$run"
    done
  done
  "$python" - "$work" "${engines[@]}" "${clients[@]}" <<'PY'
import pathlib, statistics, sys
folder, engines, failed = pathlib.Path(sys.argv[1]), sys.argv[2:4], False
print(f"clients  {engines[0]:>12}  {engines[1]:>12}  ratio   (output tok/s, medians)")
for count in sys.argv[4:]:
    peer, ours = (statistics.median(map(float, (folder / f"{engine}-{count}").read_text().split()))
                  for engine in engines)
    failed = failed or ours < peer
    print(f"{count:>7}  {peer:>12.1f}  {ours:>12.1f}  {ours / peer:>5.2f}")
sys.exit(1 if failed else 0)
PY
}
