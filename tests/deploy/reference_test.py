"""Completion in real shells, and manual pages through a real formatter: both are made of what --help says.

Needs FLOTILLA_BIN_DIR, bash, zsh, fish and mandoc.
"""

import json
import os
import pathlib
import re
import subprocess

import pytest

FLOTILLA = pathlib.Path(os.environ["FLOTILLA_BIN_DIR"]) / "flotilla"
COMMANDS = ["serve", "engine", "join", "doctor", "ask", "chat", "top", "flight", "completion", "man", "router", "replay", "inspect",
            "size", "trace", "simulate", "simulate fleet", "bench roofline", "bench offline", "bench serve",
            "bench quality", "bench fit"]


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True,
                          timeout=60, **options).stdout


def flags_in_help(command):
    return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", run(FLOTILLA, *command.split(), "--help"), re.MULTILINE))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / f"flotilla.{shell}").write_text(run(FLOTILLA, "completion", shell))
    return folder


def bash(scripts, line):
    """What bash proposes for a line whose last word is being written; it takes '=' for a word."""
    words = [word for part in line.split(" ") for word in re.split(r"(=)", part) if word or part == ""]
    code = (f"source {scripts}/flotilla.bash; COMP_WORDS=({' '.join(repr(w) for w in words)}); "
            f"COMP_CWORD={len(words) - 1}; _flotilla; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    return set(run("bash", "--norc", "-c", code).split())


def fish(scripts, line):
    home = scripts / "fish-home"
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_DATA_HOME": str(home)}
    out = run("fish", "--no-config", "-c", f"source {scripts}/flotilla.fish; complete -C '{line}'",
              env=environment)
    return {proposal.split("\t")[0] for proposal in out.splitlines()}


def zsh(scripts, line):
    """zsh completes only at a terminal: zpty is one, and its compadd is told to say what it gets."""
    code = f"""
zmodload zsh/zpty
zpty -b shell zsh -f -i
tell() {{ zpty -w shell "$1" }}
tell "autoload -U compinit; compinit -u -D; source {scripts}/flotilla.zsh"
tell 'compadd() {{ local -a f; builtin compadd -O f "$@"; builtin compadd "$@"; print -rl -- PROPO""SED$^f }}'
tell 'list() {{ _main_complete; compstate[insert]=; compstate[list]=; print E""ND }}'
tell 'zle -C list complete-word list; bindkey "^X" list; print REA""DY'
zpty -r -m shell seen '*READY*'
zpty -n -w shell $'{line}\\C-X'
zpty -r -m shell seen '*END*'
print -r -- "$seen"
zpty -d shell
"""
    seen = run("zsh", "-f", "-c", code, env={**os.environ, "TERM": "dumb"})
    return set(re.findall(r"PROPOSED([\w-]+)", seen))


@pytest.mark.parametrize("propose", [bash, fish, zsh])
def test_completes_commands_flags_and_values(scripts, propose):
    first_words = {command.split()[0] for command in COMMANDS}
    assert propose(scripts, "flotilla ") >= first_words
    assert propose(scripts, "flotilla bench ") >= {"roofline", "offline", "serve", "quality", "fit"}
    for command in ("serve", "router", "bench roofline", "simulate fleet"):
        found = {word.rstrip("=") for word in propose(scripts, f"flotilla {command} --")}
        assert flags_in_help(command) - found <= {"--help"}, command
        assert found <= flags_in_help(command) | {"--help"}, command
    values = propose(scripts, "flotilla serve --policy ")
    assert values == {"round_robin", "shortest_queue", "power_of_two", "least_latency", "consistent_hash",
                      "prefix_aware"}


def test_bash_completes_values_behind_an_equals_sign(scripts):
    assert bash(scripts, "flotilla serve --eviction-policy=l") == {"lru", "lfu"}
    assert bash(scripts, "flotilla serve --eviction-policy=") == {"lru", "lfu"}
    assert bash(scripts, "flotilla serve --port ") == set(), "files: bash's own"


def test_scripts_have_no_errors(scripts):
    run("bash", "-n", scripts / "flotilla.bash")
    run("zsh", "-n", scripts / "flotilla.zsh")
    run("fish", "--no-execute", scripts / "flotilla.fish")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_manual_pages(command, tmp_path):
    source = run(FLOTILLA, "man", *([command] if command else []))
    page = tmp_path / "page.1"
    page.write_text(source)
    # Without a date a page is the same whenever it is made.
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True,
                          check=False)
    found = [line for line in lint.stdout.splitlines() if "missing date" not in line]
    assert not found, "\n".join(found)
    text = run("mandoc", "-T", "ascii", "-O", "width=200", page)
    text = re.sub(r".\x08", "", text)  # bold and underlined
    if not command:
        for name in COMMANDS:
            assert re.search(rf"^ +{name}( |$)", text, re.MULTILINE), name
        return
    assert f"flotilla {command}" in text
    for flag in flags_in_help(command) - {"--help"}:
        assert re.search(rf"^ +(-\w, )?{flag}\b", text, re.MULTILINE), flag
    assert ("FLOTILLA_PAGE_SIZE" in text) == ("--config" in flags_in_help(command))


def test_unknown_topics_are_named():
    for words in (["man", "no-such"], ["completion", "tcsh"], ["bench", "no-such"], ["help", "no-such"]):
        answer = subprocess.run([FLOTILLA, *words], capture_output=True, text=True, check=False)
        assert answer.returncode == 2
        assert words[1] in answer.stderr


def test_other_programs_tell_their_flags():
    """One line a flag, so that whatever reads it needs no knowledge of how --help is laid out."""
    for line in run(FLOTILLA, "router", "--list-flags").splitlines():
        assert len(line.split("\t")) == 8, json.dumps(line)
