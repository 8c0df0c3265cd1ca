"""page_script.py PAGE: a bash script that does what a page says, word for word, on a machine where the Debian package is
installed: `flotilla` for `./flotilla`, a server for each block "sh serve", variables as the page sets them, and each block
"sh test" and "sh run" must end with 0 and print what it promises (tests/support/doc_fences.py).

tests/deploy/package_test.sh runs it. What it needs there: curl, pgrep, the clients' Python in PATH, and that nothing else
listens on the page's ports. Errors of the script: status 1 after the block's line in the page and what it printed.
"""

import pathlib
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from doc_fences import fences_of  # noqa: E402 - found by the line above

HEAD = """set -euo pipefail
cd "$(mktemp -d)"
server=
fail() { printf '%s: %s\\n' "$block" "$*"; cat server.log; exit 1; }
stop() {
  [[ -n $server ]] || return 0
  kill -TERM "$server"
  wait "$server" || fail "the server ended with $?"
}
serve() {
  stop
  "$@" >server.out 2>server.log &
  server=$!
  until grep -q ^ready server.out; do kill -0 "$server" || fail "the server ended"; sleep 0.1; done
}
run() {
  local text=$1 words
  shift
  bash -euo pipefail -c "$text" >output 2>&1 || fail "status $?: $(<output)"
  for words in "$@"; do grep -qF -e "$words" output || fail "it does not print '$words': $(<output)"; done
  printf 'ok %s\\n' "$block"
}
"""


def script_of(name, page):
    lines = [HEAD]
    for fence in fences_of(page):
        text = fence.text.replace("./flotilla", "flotilla")
        lines.append(f"block={name}:{fence.line}")
        if fence.kind == "serve":
            lines.append(f"serve {text}")
        elif fence.kind == "variables":
            lines.append(f"set -a\n{text}set +a")
        elif fence.kind in ("test", "run"):
            lines.append(shlex.join(["run", text, *fence.expected]))
    return "\n".join([*lines, "stop", ""])


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    print(script_of(path.name, path.read_text(encoding="utf-8")), end="")
