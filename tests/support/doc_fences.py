"""The fences of a page: what each is, and what a reader does with it.

The first word behind the ``` is the language. Of sh, the second says what a test does (tests/integration/test_docs.py):
  sh serve             one command; a cluster with these flags on free ports, in place of the one before
  sh variables         what a reader sets to the addresses of his cluster; here they are those of ours, but for LAUNCHER,
                       which is what the page's line finds and stays as it is until the page sets it again
  sh test A | B | …    must end with status 0 and print A, B and the others
  sh run               must end with status 0
  sh long A | B | …    as test, for a minute or more: only with FLOTILLA_DOCS=full
  sh background A      runs until the page's end; must print A
  sh elsewhere REASON  is not run; ELSEWHERE has the reasons
A console shows commands behind "$ " and what they print, where "..." stands for any lines. Other languages are DATA.
Code by indentation alone, without a fence, says nothing, so there is none, and no command stands indented in a list.
"""

import dataclasses
import re

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
SHELL_KINDS = ("serve", "variables", "test", "run", "long", "background", "elsewhere")
PRINTS = ("test", "long", "background")
DATA = ("text", "yaml", "json", "cpp", "cmake", "ini")
ELSEWHERE = {
    "build": "builds, installs or tests a source tree for minutes; ./flotilla test does so itself",
    "docker": "needs a container runtime, or root to build images: tests/deploy/image_test.sh does it where it may",
    "gpu": "needs a GPU: label gpu",
    "host": "installs packages or runs services of a host: tests/deploy/package_test.sh, install_test.py",
    "hosts": "needs a second host: integration_hosts has network namespaces, integration_handoff two routers",
    "kubernetes": "needs a cluster; manifests_test and image_test.sh hold what it would apply to schemas and policies",
    "shell": "is for another shell than bash: tests/deploy/reference_test.py runs its completion",
    "network": "downloads from a package registry",
}
COMMAND = re.compile(r"^(?:\$ )?(?:sudo )?(?:\./)?(?:flotilla|curl|kubectl|docker|buildah|python3?|promtool|prometheus|cmake|"
                     r"ctest|ninja|systemctl|apt-get|pip|helm|kind(?= (?:load|create)))(?: [\w./<$'\"-]|$)|"
                     r"^source <\(|^export \w+=", re.M)
LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d+\.) ")


@dataclasses.dataclass
class Fence:
    language: str
    kind: str  # of SHELL_KINDS, or empty
    detail: str
    text: str
    line: int

    @property
    def expected(self):
        return self.detail.split(" | ") if self.kind in PRINTS and self.detail else []


def fences_of(page):
    found = []
    for match in FENCE.finditer(page):
        language, kind, detail = (match[1].split(" ", 2) + ["", "", ""])[:3]
        found.append(Fence(language, kind, detail, match[2], page.count("\n", 0, match.start()) + 1))
    return found


def indented_code(page):
    """(line, why) of what would be code though it stands in no fence."""
    in_list = False
    for number, line in enumerate(FENCE.sub(lambda match: "\n" * match[0].count("\n"), page).split("\n"), 1):
        text = line.lstrip()
        indent = len(line.expandtabs(4)) - len(text)
        if LIST_ITEM.match(line):
            in_list = True
        elif indent >= 2 and COMMAND.match(text):
            yield number, "an indented command"
        elif indent >= 4 and not in_list and text and not text.startswith("```"):
            yield number, "indented code"
        elif text and indent == 0:
            in_list = False


def faults_of(name, page):
    """What of a page nobody has said how to treat."""
    fences = fences_of(page)
    marks = len(re.findall(r"^ *```", page, re.M))
    if marks != 2 * len(fences):
        yield f"{name}: {marks} lines begin with ```, but {len(fences)} fences were understood; none may be indented"
    for line, what in indented_code(page):
        yield f"{name}:{line}: {what}: put it in a fence, which says what it is"
    for fence in fences:
        where = f"{name}:{fence.line}"
        if fence.language == "sh":
            if fence.kind not in SHELL_KINDS:
                yield f"{where}: sh {fence.kind or 'alone'} is none of {', '.join(SHELL_KINDS)}"
            elif fence.kind == "elsewhere" and fence.detail not in ELSEWHERE:
                yield f"{where}: '{fence.detail}' is no reason: {', '.join(ELSEWHERE)}"
            elif (fence.kind in PRINTS) != bool(fence.expected):
                yield f"{where}: {' and '.join(PRINTS)} say what is printed, others don't"
        elif fence.language == "console":
            if not fence.text.startswith("$ ") or fence.kind:
                yield f"{where}: a console begins with '$ ', and has no further words"
        elif fence.language not in DATA:
            yield f"{where}: no language '{fence.language}'"
        elif fence.language == "text" and COMMAND.search(fence.text):
            yield f"{where}: this text has a command: sh, and what to do with it"


def console_parts(text):
    """(command, what it prints) of a console."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, printed = re.match(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.S).groups()
        yield command, printed


def prints(shown, printed):
    """Whether that is what a console shows: "..." on a line of its own is any lines, or none."""
    parts = re.split(r"^\.\.\.\n", shown, flags=re.M)
    return re.fullmatch("(?:.*\n)*?".join(map(re.escape, parts)), printed) is not None
