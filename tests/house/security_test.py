"""The rules of docs/security.md: each names tests that hold it, and those are there. What is no matter of one test is
looked for in the sources here. Each check is also shown what it must refuse.

Run from the repository's root: python3 tests/house/security_test.py
"""

import pathlib
import re
import unittest

from house_test import read, tracked

PAGE = "docs/security.md"
HEADING = "## Rules and the tests that hold them"
RULES = 13  # of design: one may be split, none left out
# `tests/FILE` Name, Name; `tests/FILE` Name …
TESTS = re.compile(r"`(tests/[\w/.-]+)` ((?:[\w.]+(?:, )?)+)")
# A library may be loaded by a name that stands in the source, which no message and no file can change.
EXECUTABLE = re.compile(r"\bpickle\b|\bcloudpickle\b|\bmarshal\.loads|\bshelve\b|\bdill\b|boost/(?:archive|serialization)"
                        r"|\bdlopen\s*\((?!\"lib\w+\.so\.\d+\",)|yaml\.(?:load|unsafe_load)\(|(?<![\w.])(?:eval|exec)\s*\(")


def rules(page):
    """(line, rule, [(file, test)]) of the table."""
    lines = page.splitlines()
    start = lines.index(HEADING) if HEADING in lines else len(lines)
    for number, line in enumerate(lines[start + 1:], start + 2):
        if line.startswith("## "):
            return
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0] not in ("rule", "---"):
            named = [(path, name) for path, names in TESTS.findall(cells[1]) for name in names.split(", ")]
            yield number, cells[0], named


def declares(path, name):
    if path not in tracked(path):
        return False
    text = read(path)
    if path.endswith(".py"):
        return re.search(rf"^ *def {re.escape(name)}\(", text, re.M) is not None
    suite, _, test = name.partition(".")
    return re.search(rf"^TEST(?:_F|_P)?\({re.escape(suite)},\s+{re.escape(test)}\)", text, re.M) is not None


def mistakes(page):
    found = list(rules(page))
    if len(found) < RULES:
        yield f"{PAGE}: {len(found)} rules under '{HEADING}', at least {RULES} are ours"
    for line, rule, named in found:
        if not named:
            yield f"{PAGE}:{line}: no test holds '{rule}'"
        for path, name in named:
            if not declares(path, name):
                yield f"{PAGE}:{line}: no test {name} in {path}"


def executable_serialisation(sources):
    return [path for path, text in sources.items() if EXECUTABLE.search(text)]


def open_defaults(readme):
    """Addresses to listen on by default that others reach."""
    defaults = re.findall(r"^\| `--host` \| `([^`]*)` \|", readme, re.M)
    return ["no --host at all"] if not defaults else [host for host in defaults if host != "127.0.0.1"]


def ends_early(function):
    """Whether the comparison in it may end before its last byte or key."""
    loops = re.findall(r"for \([^{;]*(?:;[^{;]*;[^{;]*)?\) (?:\{.*?^  \}|[^;]*;)", function, re.M | re.S)
    return not loops or any(re.search(r"\b(?:break|return|goto|continue)\b|&&|memcmp|==(?!.*SameHash)", loop)
                            for loop in loops)


def body_of(text, signature):
    start = text.index(signature)
    return text[start:text.index("\n}\n", start)]


class SecurityTest(unittest.TestCase):

    def test_every_rule_has_tests_that_are_there(self):
        self.assertEqual(list(mistakes(read(PAGE))), [])

    def test_nothing_executable_is_serialised(self):
        sources = {path: read(path) for path in tracked("*.h", "*.cc", "*.cu", "*.py")
                   if not path.startswith("tests/")}
        self.assertEqual(executable_serialisation(sources), [])

    def test_loopback_is_the_default(self):
        self.assertEqual(open_defaults(read("docs/commands.md")), [])

    def test_keys_are_compared_to_their_last_byte_and_with_all(self):
        text = read("router/admission/api_keys.cc")
        for signature in ("bool SameHash(", "ApiKeys::Find("):
            self.assertFalse(ends_early(body_of(text, signature)), signature)

    def test_each_check_sees_what_it_is_for(self):
        row = "| a rule | `tests/router/access_test.cc` {} |\n"
        page = HEADING + "\n\n| rule | tests |\n|---|---|\n" + row.format("AccessTest.ADisabledKeyIsForbidden") * RULES
        self.assertEqual(list(mistakes(page)), [])
        for wrong in (row.format("AccessTest.NoSuchTest"), "| a rule | none yet |\n",
                      "| a rule | `tests/router/no_test.cc` AccessTest.ADisabledKeyIsForbidden |\n",
                      "| a rule | `tests/house/house_test.py` test_nothing |\n"):
            self.assertEqual(len(list(mistakes(page + wrong))), 1, wrong)
        self.assertEqual(len(list(mistakes("# Security\n"))), 1)
        for text in ("import pickle", "dlopen(path, 0)", 'dlopen("/tmp/libnccl.so.2", 0)',
                     'dlopen(("libnccl.so.2" + name).c_str(), 0)', "yaml.load(text)", "#include <boost/archive/text_iarchive.hpp>"):
            self.assertEqual(executable_serialisation({"a": text}), ["a"], text)
        self.assertEqual(executable_serialisation({"a": 'dlopen("libnccl.so.2", RTLD_NOW)'}), [])
        self.assertEqual(open_defaults("| `--host` | `0.0.0.0` | |"), ["0.0.0.0"])
        self.assertTrue(ends_early("for (char c : a) {\n    if (c != b[i++]) return false;\n  }\n"))
        self.assertTrue(ends_early("return a == b;"))
        self.assertTrue(ends_early("for (const Key& each : all) {\n    if (each.hash == hash) found = &each;\n  }\n"))


if __name__ == "__main__":
    unittest.main()
