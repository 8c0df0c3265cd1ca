"""Random templates, the same ones each time: expressions, white space, statements."""

import random

VARIABLES = {
    "s": "Hello World", "u": "Zürich ß 中文 🙂", "sp": "  a b\n c ", "e": "", "n": 7, "m": -3, "z": 0,
    "f": 2.5, "g": -0.125, "big": 1e16, "t": True, "no": False, "nul": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "lm": [1, "x", None, 2.0, True], "le": [],
    "ll": [[1, 2], [3, 4]], "d": {"b": 1, "a": [1, "x"], "items": 5}, "de": {},
    "o": [{"name": "B", "k": 2}, {"name": "a", "k": 1}, {"name": "b"}],
}

ATOMS = list(VARIABLES) + [
    "nix", "1", "2", "0", "-1", "3", "1.5", "'a'", "'b c'", "''", "'%s'", "'é'", "true", "none",
    "[1, 2]", "[]", "{'a': 1}", "{}", "(1, 2)", "()", "range(3)", "'x,y,z'", "1e-7",
]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in",
          "and", "or"]
FILTERS = [
    "abs", "capitalize", "count", "d('x')", "default('y', true)", "dictsort", "e", "first", "float",
    "float(1)", "indent", "indent(2, true)", "int", "int(9)", "items|list", "join", "join(', ')",
    "last", "length", "list", "lower", "map('string')|list", "map(attribute='name')|list",
    "map('upper')|join('|')", "max", "min", "reject('none')|list", "replace('a', 'b')",
    "reverse|list", "round", "round(1)", "select|list", "selectattr('k')|list",
    "selectattr('name', 'equalto', 'a')|list", "rejectattr('k', 'defined')|list", "sort",
    "sort(reverse=true)", "sort(attribute='name')", "string", "sum", "title", "tojson",
    "tojson(indent=1)", "trim", "trim('a')", "unique|list", "upper", "safe", "select('number')|list",
    "map('int')|list", "center(12)", "string|safe", "tojson|safe", "last|string", "map('first')|list",
]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true",
         "false", "mapping", "sequence", "iterable", "odd", "even", "divisibleby(2)", "in(l)",
         "eq(1)", "equalto('a')", "sameas(none)", "lower", "upper", "callable", "gt(1)", "escaped"]
METHODS = [
    ".upper()", ".lower()", ".strip()", ".strip('a ')", ".lstrip()", ".rstrip('d')", ".split()",
    ".split(' ')", ".split('o', 1)", ".rsplit(none, 1)", ".splitlines()", ".startswith('H')",
    ".endswith(('d', 'a'))", ".replace('l', 'LL')", ".title()", ".find('o')", ".rfind('o', 0, 5)",
    ".count('l')", ".join(ls)", ".partition(' ')", ".get('a')", ".get('q', 1)", ".items()|list",
    ".keys()|list", ".values()|list", ".index(1)", ".copy()", ".zfill(9)", ".ljust(12, '.')",
    ".center(15)", ".isdigit()", ".format(1, a=2)", ".append(1)", ".name", ".b", ".a", ".0",
    "[0]", "[-1]", "['a']", "['items']", "[1:]", "[::-1]", "[:-1]", "[::2]", "[-2:5]", "[n]", "[t]",
    ".removeprefix('He')", ".casefold", ".__class__", "._x", "[1.0]", "[none]", "[nix]", ".swapcase()",
]


class Expressions:
    def __init__(self, rng):
        self._rng = rng

    def make(self, depth):
        rng = self._rng
        if depth == 0:
            return rng.choice(ATOMS)
        kind = rng.random()
        inner = self.make(depth - 1)
        if kind < 0.30:
            return f"({inner})|{rng.choice(FILTERS)}"
        if kind < 0.55:
            return f"({inner}) {rng.choice(BINARY)} ({self.make(rng.randrange(depth))})"
        if kind < 0.75:
            return f"({inner}){rng.choice(METHODS)}"
        if kind < 0.82:
            return f"({inner}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
        if kind < 0.88:
            return f"{inner} if {self.make(0)} else {self.make(0)}"
        if kind < 0.94:
            return rng.choice(["not ({})", "-({})", "[{}, 1]", "{{'k': {}}}", "({},)", "[{0}, {0}]"]
                              ).format(inner)
        return f"{inner} {rng.choice(BINARY)} {self.make(0)} {rng.choice(BINARY)} {self.make(0)}"


def _case(template):
    return {"template": template, "extra": VARIABLES}


def expressions(count):
    rng = random.Random(11)
    make = Expressions(rng)
    return [_case("{% set r = " + make.make(rng.choice([1, 1, 2, 2, 3, 4])) + " %}{{ r }}")
            for _ in range(count)]


PIECES = ["a", " ", "  ", "\n", "\n\n", "\t", "b\n", " \n ", "\r\n", "\u00a0", "{", "}", "%", "#", "-",
          "{ {", "}}", "%}", "#}", "é"]
OPEN = ["{{", "{{-", "{{+"]
CLOSE = ["}}", "-}}"]
TAGS = ["if t", "if no", "endif", "else", "set q = 1", "for i in l", "endfor", "elif t", "raw",
        "endraw", "filter upper", "endfilter", "set w", "endset", "generation", "endgeneration"]


def _tag(rng, tag):
    return (rng.choice(["{%", "{%", "{%-", "{%+"]) + rng.choice([" ", "", "\n", "  "]) + tag
            + rng.choice([" ", "", "\n "]) + rng.choice(["%}", "%}", "-%}", "+%}"]))


def _space(rng):
    return "".join(rng.choice(PIECES[:10] + ["x"]) for _ in range(rng.randrange(4)))


def _nested(rng, depth):
    """Well-formed text with tags, white space around all of them."""
    parts = [_space(rng)]
    for _ in range(rng.randrange(1, 4)):
        kind = rng.random()
        if depth == 0 or kind < 0.25:
            parts.append(rng.choice(OPEN) + " s " + rng.choice(CLOSE))
        elif kind < 0.4:
            parts.append(rng.choice(["{#", "{#-", "{#+"]) + " c\n " + rng.choice(["#}", "-#}", "+#}"]))
        elif kind < 0.5:
            parts.append(_tag(rng, "raw") + _space(rng) + "{{ y }}" + _space(rng)
                         + _tag(rng, "endraw"))
        else:
            start, end = rng.choice([("if t", "endif"), ("if no", "endif"), ("for i in l", "endfor"),
                                     ("filter upper", "endfilter"), ("set w", "endset"),
                                     ("generation", "endgeneration"), ("with", "endwith")])
            parts += [_tag(rng, start), _nested(rng, depth - 1), _tag(rng, end)]
        parts.append(_space(rng))
    return "".join(parts)


def white_space(count):
    rng = random.Random(12)
    cases = []
    for i in range(count):
        if i % 3:
            cases.append(_case(_nested(rng, 3)))
            continue
        parts = []  # anything at all: mostly errors
        for _ in range(rng.randrange(1, 8)):
            parts.append(rng.choice([
                lambda: rng.choice(PIECES), lambda: _tag(rng, rng.choice(TAGS)),
                lambda: rng.choice(OPEN) + " s " + rng.choice(CLOSE),
                lambda: "{# " + rng.choice(PIECES) + "#}"])())
        cases.append(_case("".join(parts)))
    return cases


NAMES = ["a", "b", "n", "l", "x"]
MACROS = ["m1", "m2"]


class Statements:
    """Assignments, loops and macros that share few names, to test who sees what."""

    def __init__(self, rng):
        self._rng = rng

    def _value(self):
        rng = self._rng
        name = rng.choice(NAMES)
        return rng.choice([name, name, str(rng.randrange(9)), f"({name} ~ 'q')[-6:]",
                           f"{name}|default('D')", "loop.index if loop else 'L'",
                           f"{rng.choice(MACROS)}({name})",
                           f"[{name}, {rng.choice(NAMES)}]|string", "ns.v", f"{name} is defined"])

    def block(self, depth):
        return "".join(self._statement(depth) for _ in range(self._rng.randrange(1, 4)))

    def _statement(self, depth):
        rng = self._rng
        name = rng.choice(NAMES)
        kind = rng.randrange(5 if depth == 0 else 16)
        if kind <= 2:
            return "[{{ %s }}]" % self._value()
        if kind == 3:
            return "{%% set %s = %s %%}" % (name, self._value())
        if kind == 4:
            return "{%% set ns.v = %s %%}" % self._value()
        body = self.block(depth - 1)
        if kind <= 6:
            return "{%% if %s %%}%s{%% elif %s %%}%s{%% else %%}%s{%% endif %%}" % (
                self._value(), body, name, self.block(0), self.block(0))
        if kind <= 8:
            test = rng.choice(["", "", f" if {name}", " if loop", f" if {rng.choice(NAMES)}"])
            leave = rng.choice(["", "", "{% break %}", "{% if a %}{% continue %}{% endif %}"])
            otherwise = rng.choice(["", "{% else %}" + self.block(0)])
            return "{%% for %s in %s%s %%}%s%s%s%s{%% endfor %%}" % (
                name, rng.choice(["[1, 2]", "range(2)", "'pq'", "l", "[]"]), test, body, leave,
                self.block(0), otherwise)
        if kind == 9:
            return "{%% set %s %%}%s{%% endset %%}" % (name, body)
        if kind == 10:
            return "{%% with %s = %s %%}%s{%% endwith %%}" % (name, self._value(), body)
        if kind == 11:
            return "{% filter upper %}" + body + "{% endfilter %}"
        if kind == 12:
            return "{% generation %}" + body + "{% endgeneration %}"
        if kind == 13:
            return "{%% call(%s) %s(%s) %%}%s{%% endcall %%}" % (
                name, rng.choice(MACROS), self._value(), body)
        return "{%% macro %s(%s) %%}%s%s{%% endmacro %%}" % (
            rng.choice(MACROS),
            rng.choice(["", name, f"{name}={self._value()}", f"q, {name}=1"]), body,
            rng.choice(["", "{{ caller(n) if caller }}", "{{ varargs }}{{ kwargs }}"]))


def statements(count):
    rng = random.Random(13)
    make = Statements(rng)
    start = ("{% set ns = namespace(v=0) %}"
             "{% macro m1(x) %}<{{ x }}{{ n }}{{ caller(1) if caller }}>{% endmacro %}"
             "{% macro m2() %}{{ varargs }}{{ kwargs }}{{ caller(2) if caller }}{% endmacro %}")
    return [_case(start + make.block(rng.choice([1, 2, 3]))) for _ in range(count)]
