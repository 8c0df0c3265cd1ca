"""Lines to tokenize: files of this machine in many languages, and generated edge cases."""

import bz2
import gettext
import glob
import gzip
import itertools
import os
import random
import sysconfig

SEED = 20240607
MAX_LINE = 4000  # characters


def _open(path):
    if path.endswith(".gz"):
        return gzip.open(path, "rb")
    if path.endswith(".bz2"):
        return bz2.open(path, "rb")
    return open(path, "rb")


def _file_lines(path):
    try:
        with _open(path) as file:
            text = file.read(4 << 20).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return []
    return [line[:MAX_LINE] for line in text.splitlines(keepends=True) if line.strip()]


def _catalogue_lines(path):
    """Translated messages of a gettext catalogue, in the language of its folder."""
    try:
        with open(path, "rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog
    except (OSError, ValueError, UnicodeDecodeError):
        return []
    return [str(text)[:MAX_LINE] for text in catalogue.values() if text]


def _take(rng, paths, read, count, per_file):
    """`count` different lines of files in random order, at most `per_file` of each."""
    paths = sorted(paths)
    rng.shuffle(paths)
    lines = []
    for path in paths:
        if len(lines) >= count:
            break
        found = read(path)
        lines += rng.sample(found, min(per_file, len(found)))
    return lines[:count]


def machine_lines(count):
    """Lines of Python and C++ headers and documentation; fewer if the machine has fewer files."""
    rng = random.Random(SEED)
    find = lambda *patterns: list(
        itertools.chain.from_iterable(glob.iglob(p, recursive=True) for p in patterns))
    python = sysconfig.get_paths()["stdlib"]
    system = "/usr/lib/python3*"  # encodings and tests of the distribution's own Python
    kinds = [
        (find(python + "/**/*.py", system + "/**/*.py"), _file_lines, 25),
        (find("/usr/include/**/*.h", "/usr/include/c++/**/*"), _file_lines, 25),
        (find("/usr/share/man/*/**/*.gz", "/usr/share/man/*/**/*.[1-9]"), _file_lines, 20),
        (find("/usr/share/doc/**/*"), _file_lines, 10),
        (find("/usr/share/locale/*/LC_MESSAGES/*.mo"), _catalogue_lines, 40),
        (find("/usr/share/i18n/locales/*", "/usr/share/gettext/**/*.po",
              "/usr/share/perl/**/*.p[ml]", "/usr/share/zoneinfo/*.tab"), _file_lines, 40),
        (find(python + "/site-packages/**/*.py", os.path.dirname(os.__file__) + "/**/*.txt"),
         _file_lines, 25),
    ]
    lines = []
    for paths, read, per_file in kinds:
        paths = [p for p in paths if os.path.isfile(p)]
        lines += _take(rng, paths, read, count, per_file)
    rng.shuffle(lines)
    return lines[:count]


def _code_points():
    """Every code point that UTF-8 can write, 64 to a line: bare, between letters, after spaces."""
    for base in range(0, 0x110000, 64):
        block = [chr(c) for c in range(base, base + 64) if not 0xD800 <= c < 0xE000]
        if block:
            yield "".join(block)
            yield "a".join(block)
            yield " ".join(block)


WORDS = [
    "don't", "I'LL", "we've", "'s", "'re'd", "x'", "naïve", "straße", "Ελληνικά", "русский",
    "שלום עולם", "مرحبا بالعالم", "हिन्दी", "ภาษาไทย", "中文字符", "日本語のテキスト", "한국어", "e\u0301",
    "a\u0300\u0316\u0331", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "👍🏽", "①②", "½", "٣٤٥", "Ⅻ", "𝟘𝟙", "ﬁ", "İi",
    "foo_bar->baz", "0xDEADbeef", "3.14159e-10", "1,234,567", "https://example.org/?q=1&r=é",
    "\u200b", "\ufeff", "\u202e", "\u00ad", "\x00", "\x7f", "\x1b[0m", "\u0085", "\u2028", "\u180e",
    "\U000e0041", "\ufffd", "\U0010ffff", "\ue000", "…", "“quoted”", "—", "¿qué?", "#!/bin/sh",
]
SPACES = ["", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2009 ",
          "\v\f", "        ", "\t\t\t", " \u2028"]


def edge_lines(count, special_tokens):
    """At most `count` lines that ordinary text rarely has. The same on every machine."""
    rng = random.Random(SEED + 1)
    lines = ["", " ", "\n", "a", "1", "'", " '", "  1", "1  ", " \t 1 \t a \t ", "a" * 1000,
             " " * 1000 + "x", "1" * 300, "\n" * 500, "ab" * 700, "é" * 500, "😀" * 200,
             "!" * 600, "=" * 80 + "\n", " a" * 300, "aA" * 200 + "  "]
    lines += special_tokens
    lines += ["".join(special_tokens), " ".join(special_tokens)]
    lines += [t[:-1] for t in special_tokens] + [t[1:] for t in special_tokens]
    lines += [f"a{t}{t} b{t}1\n{t}  {t[:4]}{t}" for t in special_tokens]
    while len(lines) < count:
        parts = []
        for _ in range(rng.randint(1, 12)):
            parts.append(rng.choice(SPACES))
            kind = rng.random()
            if kind < 0.55:
                parts.append(rng.choice(WORDS))
            elif kind < 0.65 and special_tokens:
                parts.append(rng.choice(special_tokens))
            elif kind < 0.75:
                parts.append(str(rng.randrange(10**rng.randint(1, 12))))
            elif kind < 0.9:
                parts.append("".join(random_character(rng) for _ in range(rng.randint(1, 8))))
            else:
                parts.append(rng.choice(WORDS)[0] * rng.randint(2, 90))
        parts.append(rng.choice(SPACES))
        lines.append("".join(parts))
    return lines[:count]


def code_point_lines():
    return list(_code_points())


def random_character(rng):
    """Any code point, each length of UTF-8 as likely as the others."""
    low, high = rng.choice([(0, 0x80), (0x80, 0x800), (0x800, 0x10000), (0x10000, 0x110000)])
    while True:
        c = rng.randrange(low, high)
        if not 0xD800 <= c < 0xE000:
            return chr(c)
