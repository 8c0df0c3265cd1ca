// Loops, conditions, assignments, macros, call blocks, and who sees which variable.
// All texts are what Python's jinja2 3.1 makes of their templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

constexpr Case kStatements[] = {
    {"{% for i in l %}{{ loop.index }}:{{ loop.index0 }}:{{ loop.first }}:{{ loop.last }}:{{ "
     "loop.length }}:{{ loop.revindex }}:{{ i }} {% endfor %}",
     "1:0:True:False:3:3:3 2:1:False:False:3:2:1 3:2:False:True:3:1:2 "},
    {"{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
     "<3>1 3<1>2 1<2> "},
    {"{% for i in [] %}x{% else %}empty{% endfor %}", "empty"},
    {"{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% else %}e{% endfor %}",
     "32"},
    {"{% for i in l %}{% if loop.index == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "3"},
    {"{% for i in l %}{% break %}{% else %}else runs{% endfor %}", "else runs"},
    {"{% for i in l %}{% continue %}{% else %}else runs too{% endfor %}", "else runs too"},
    {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=[1, 'x'];items=5;"},
    {"{% for k in d %}{{ k }}{% endfor %}", "baitems"},
    {"{% for c in 'añ' %}[{{ c }}]{% endfor %}", "[a][ñ]"},
    {"{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}",
     "1/2:3 2/2:2 "},
    {"{% for a, b in [[1, 2], [3, 4]] if b > 2 %}{{ a }}{{ b }}{% endfor %}", "34"},
    {"{% for x in nix %}{% else %}none{% endfor %}", "none"},
    {"{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ "
     "loop.index }}|{% endfor %}",
     "1|110 2|120 221 3|"},
    {"{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}",
     "aTrue bTrue aTrue "},
    {"{% for i in l|map('string') %}{{ loop.last }}{{ loop.length }}{{ i }}{% endfor %}",
     "False33False31True32"},
    {"{% if e %}1{% elif n > 5 %}2{% else %}3{% endif %}", "2"},
    {"{% if nix %}1{% elif nul %}2{% elif l %}3{% endif %}", "3"},
    {"{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "4 2 3 1"},
    {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }} "
     "{{ ns }} {{ ns['x'] }} {{ ns.y }}|",
     "7 <Namespace {'x': 7}> 7 |"},
    {"{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% set ns.c, q = 5, 6 %}{{ ns.c "
     "}}{{ q }}",
     "1256"},
    {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}{% set a = 1, 2 "
     "%}{{ a }}",
     "1221(1, 2)"},
    {"{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "[a7b]"},
    {"{% set x | upper | replace('A', 'z') %}abc{% endset %}{{ x }}", "zBC"},
    {"{% set x | length %}abc{% endset %}{{ x + 1 }}", "4"},
    {"{% filter upper %}a{{ s }}{% endfilter %}", "AHELLO WORLD"},
    {"{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}|", "17|"},
    {"{% print s, n %}", "Hello World7"},
    {"{% generation %}a{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}|", "a1|"},
    {"{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, c=5) }} {{ "
     "f(b=1, a=2) }} {{ f() }}|",
     "121 125 212 2|"},
    {"{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 'a', k=2) }}",
     "(1, 'a'){'k': 2}"},
    {"{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
     "4321"},
    {"{% macro f(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) f(3) %}y={{ y }}{% endcall %}",
     "[y=3]"},
    {"{% macro f() %}{{ caller is defined }}{{ caller() if caller }}{% endmacro %}{{ f() }}{% call "
     "f() %}c{% endcall %}",
     "FalseTruec"},
    {"{{ f }}|{% macro f(a) %}{% endmacro %}{{ f }} {{ f.name }} {{ f.arguments }}",
     "2.5|<Macro 'f'> f ('a',)"},
    {"{% macro f() %}{{ late }}{% endmacro %}{% set late = 5 %}{{ f() }}", "5"},
    {"{% macro f() %}{{ n }}{% set n = 1 %}{{ n }}{% endmacro %}{{ f() }}{{ n }}", "717"},
    {"{% for m in l %}{{ n }}{% endfor %}{% set n = 1 %}", ""},
    {"{{ n }}{% if t %}{% set n = 1 %}{% endif %}{{ n }}", "71"},
    {"{% if not t %}{% set n = 1 %}{% endif %}{{ n }}", "7"},
    {"{% for i in l %}{{ n }}{% set n = i %}{{ n }}{% endfor %}{{ n }}", "7371727"},
    {"{% for i in l %}{% if i == 1 %}{% set q = i %}{% endif %}[{{ q }}]{% endfor %}", "[][1][]"},
    {"{% set q = 9 %}{% for i in l %}{% if i == 1 %}{% set q = i %}{% endif %}[{{ q }}]{% endfor "
     "%}",
     "[9][1][9]"},
    {"{% set x %}{% for i in l %}{{ i }}{% break %}{% endfor %}{% endset %}{{ x }}", "3"},
    {"{% for i in l %}{% set x %}a{% if i == 1 %}{% break %}{% endif %}b{% endset %}{{ x }}{% "
     "endfor %}",
     "ab"},
    {"{% macro m(loop_) %}{{ loop_.index }}{{ loop_.last }}{% endmacro %}{% for i in l %}{{ "
     "m(loop) }}{% endfor %}",
     "1False2False3True"},
    {"{% for i in l %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}", "312"},
    {"{% set ns = namespace() %}{% for i in l %}{% macro g() %}{{ i }}{% endmacro %}{% if "
     "loop.first %}{% set ns.g = g %}{% endif %}{{ ns.g() }}{% endfor %}",
     "312"},
    {"{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(none) }}", "FalseTrue"},
    {"{% set f = namespace(v=1) %}{% macro g(x) %}{% set f.v = f.v + x %}{% endmacro %}{{ g(2) "
     "}}{{ f.v }}",
     "3"},
    {"{% set x = 1 %}{% with %}{% set x = 2 %}{{ x }}{% endwith %}{{ x }}", "21"},
    {"{% for i in [1] %}{% for i in [2] %}{{ i }}{% endfor %}{{ i }}{% endfor %}", "21"},
    {"{% set l = [1] %}{% for l in l %}{{ l }}{% endfor %}{{ l }}", "1[1]"},
    {"{% for x in range(2) %}{{ x }}{% endfor %}{{ x }}|", "01|"},
    {"{{ range(3)|sum }}{{ dict(a=1, b=2) }}{{ dict([['x', 1]]) }}{{ dict({'a': 1}, b=2) }}",
     "3{'a': 1, 'b': 2}{'x': 1}{'a': 1, 'b': 2}"},
    {"{% set m = messages %}{{ m }}{{ tools }}{{ documents }}{{ add_generation_prompt }}",
     "NoneNoneNoneFalse"},
    {"{{ strftime_now('%Y-%m-%d %H:%M:%S %d %B %b %a %A %j %-d %f|%z|%Z|%%') }}",
     "2025-06-07 08:09:10 07 June Jun Sat Saturday 158 7 000000|||%"},
    {"{% for i in l: %}{{ i }}{% endfor %}", "312"},
    {"{% macro f(a, caller=none) %}{{ caller }}{% endmacro %}{{ f(1) }}", "None"},
    {"{{ kwargs }}|{% macro f() %}{% for k in kwargs %}{{ k }}{% endfor %}{% endmacro %}{{ "
     "f(**{'x': 1, 'y': 2}) }}{{ f(*[]) }}",
     "|xy"},
    {"{% macro f(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ f(*[1, 2]) }} {{ f(**{'a': 3, 'b': 4}) }} "
     "{{ f(*[5], b=6) }}",
     "1-2 3-4 5-6"},
};

TEST(TemplateStatementsTest, AFilterThatAsksItsOwnLoopForMoreIsAnError) {
  for (const char* ask : {"length", "last", "nextitem"}) {
    EXPECT_THAT(
        Rendered(StrCat("{% set ns = namespace(l=none) %}{% for x in [0, 1] if ns.l is none or "
                        "ns.l.",
                        ask, " %}{% set ns.l = loop %}{% endfor %}")),
        ::testing::HasSubstr("generator already executing"))
        << ask;
  }
}

TEST(TemplateStatementsTest, AsInJinja2) {
  for (const Case& c : kStatements) EXPECT_EQ(Rendered(c.source), c.text) << c.source;
}

}  // namespace
}  // namespace flotilla
