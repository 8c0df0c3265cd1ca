"""Writes common/template/unicode_tables.cc: what Python's str methods know about characters.

    python3 tests/common/make_unicode_tables.py        # Python 3.11, Unicode 14
Another Python may have another Unicode: then the file's first line says so in the diff.
"""

import pathlib
import unicodedata

OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "common/template/unicode_tables.cc"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(codes):
    """[[first, last], ...] of a sorted list."""
    out = []
    for code in codes:
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def case_ranges(method):
    """[[first, last, stride, delta], ...]: characters that `method` maps to one other character."""
    out = []
    for code in CODE_POINTS:
        mapped = method(chr(code))
        if code < 0x80 or len(mapped) != 1 or ord(mapped) == code:
            continue
        delta = ord(mapped) - code
        if out and out[-1][3] == delta:
            first, last, stride, _ = out[-1]
            if (first == last and code - last <= 2) or code - last == stride:
                out[-1] = [first, code, code - last, delta]
                continue
        out.append([code, code, 1, delta])
    return out


def special_cases():
    """(code, upper, title) where either is several characters, or they differ."""
    return [(c, chr(c).upper(), chr(c).title()) for c in CODE_POINTS
            if c >= 0x80 and (len(chr(c).upper()) > 1 or chr(c).title() != chr(c).upper())]


def lower(char):
    return "σ" if char == "Σ" else char.lower()  # alone, Python's is the final one


def cased_without_mapping():
    """Cased characters that have no other case: only the tables of properties know them."""
    plain = [c for c in CODE_POINTS if chr(c).upper() == chr(c) and lower(chr(c)) == chr(c)]
    lowers = ranges([c for c in plain if chr(c).islower()])
    uppers = ranges([c for c in plain if chr(c).isupper()])
    return sorted([r + [0] for r in lowers] + [r + [1] for r in uppers])


def check_rule_for_mapped():
    """unicode_text.cc: upper differs → a lower-case letter; lower differs → upper; both → title."""
    for code in CODE_POINTS:
        char = chr(code)
        has_upper, has_lower = char.upper() != char, lower(char) != char
        if has_upper or has_lower:
            assert char.islower() == (has_upper and not has_lower), hex(code)
            assert char.isupper() == (has_lower and not has_upper), hex(code)


def three(text):
    codes = [ord(c) for c in text] + [0] * (3 - len(text))
    return "{" + ", ".join(f"{c:#x}" if c else "0" for c in codes) + "}"


def table(kind, name, rows):
    lines, line = [], " "
    for row in rows:
        if len(line) + len(row) + 2 > 100:
            lines.append(line)
            line = " "
        line += f" {row},"
    return f"const {kind} {name}[] = {{\n" + "\n".join(lines + [line]) + "\n};\n" \
           f"const size_t {name}Count = std::size({name});\n"


def row(values):
    return "{" + ", ".join(f"{v:#x}" if v > 9 else str(v) for v in values) + "}"


def main():
    check_rule_for_mapped()
    hidden = [c for c in range(0x110000) if not chr(c).isprintable()]
    text = f"""// Unicode {unicodedata.unidata_version}, written by tests/common/make_unicode_tables.py; \
see unicode_tables.h.
#include "common/template/unicode_tables.h"

#include <iterator>

namespace flotilla::jinja {{
// clang-format off

{table("CodeRange", "kNotPrintable", map(row, ranges(hidden)))}
{table("CaseRange", "kUpperCase", map(row, case_ranges(str.upper)))}
{table("CaseRange", "kLowerCase", map(row, case_ranges(lower)))}
{table("SpecialCase", "kSpecialCase",
       (f"{{{c:#x}, {three(u)}, {three(t)}}}" for c, u, t in special_cases()))}
{table("CasedRange", "kCasedOther", map(row, cased_without_mapping()))}
// clang-format on
}}  // namespace flotilla::jinja
"""
    OUTPUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
