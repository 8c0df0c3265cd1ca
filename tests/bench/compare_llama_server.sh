#!/usr/bin/env bash
# Flotilla beside llama-server on the same file: compare.py with these two, and what it takes (--help).
#
#   tests/bench/compare_llama_server.sh [--clients 1 8 32 …]
#
# The exit status is 1 if Flotilla is slower anywhere.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
exec "$root/.cache/venv/bin/python" "$root/tests/bench/compare.py" "$@" -- llama-server flotilla
