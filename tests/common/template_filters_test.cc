// Filters and tests.
// All texts are what Python's jinja2 3.1 makes of their templates.
#include <gtest/gtest.h>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

constexpr Case kFilters[] = {
    {"{{ s|upper }}{{ s|lower }}{{ s|title }}{{ s|capitalize }}{{ u|upper }}{{ u|title }}{{ 'ΑΣ "
     "ΣΑ'|lower }}{{ 'hello-world (foo) bar_baz'|title }}",
     "HELLO WORLDhello worldHello WorldHello worldZÜRICH SS 中文 🙂Zürich SS 中文 🙂ας "
     "σαHello-World (Foo) Bar_baz"},
    {"{{ '  a '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ none|trim }}|{{ 5|trim }}", "a|a|None|5"},
    {"{{ s|replace('o', '0') }} {{ s|replace('l', 'L', 1) }} {{ 'aaa'|replace('', '-') }} {{ "
     "12|replace(1, 3) }}",
     "Hell0 W0rld HeLlo World -a-a-a- 32"},
    {"{{ l|join }} {{ l|join(', ') }} {{ objs|join('-', attribute='name') }} {{ 'abc'|join('.') }} "
     "{{ [none, true, 1.5]|join('|') }} {{ l|join(d='+') }}",
     "312 3, 1, 2 B-a-b a.b.c None|True|1.5 3+1+2"},
    {"{{ l|sort }} {{ l|sort(reverse=true) }} {{ ['b', 'A', 'a']|sort }} {{ ['b', 'A', "
     "'a']|sort(case_sensitive=true) }} {{ objs|sort(attribute='name')|map(attribute='name')|list "
     "}}",
     "[1, 2, 3] [3, 2, 1] ['A', 'a', 'b'] ['A', 'a', 'b'] ['a', 'B', 'b']"},
    {"{{ d|dictsort }} {{ {'b': 1, 'A': 3, 'c': 2}|dictsort }} {{ {'b': 1, 'A': 3}|dictsort(true) "
     "}} {{ {'b': 1, 'A': 3}|dictsort(false, 'value', true) }}",
     "[('a', [1, 'x']), ('b', 1), ('items', 5)] [('A', 3), ('b', 1), ('c', 2)] [('A', 3), ('b', "
     "1)] [('A', 3), ('b', 1)]"},
    {"{{ ['a', 'A', 'b', 'a']|unique|list }} {{ ['a', 'A']|unique(true)|list }} {{ "
     "objs|unique(attribute='name')|list|length }}",
     "['a', 'b'] ['a', 'A'] 2"},
    {"{{ l|min }}{{ l|max }}{{ ['b', 'A']|min }}{{ []|min }}|{{ objs|max(attribute='name') }}",
     "13A|{'name': 'B', 'k': 2}"},
    {"{{ l|first }}{{ l|last }}{{ ''|first }}|{{ []|last }}|{{ 'ab'|last }}{{ d|first }}{{ d|last "
     "}}",
     "32||bbitems"},
    {"{{ l|reverse|list }}{{ s|reverse }}{{ d|reverse|list }}",
     "[2, 1, 3]dlroW olleH['items', 'a', 'b']"},
    {"{{ l|list }}{{ 'ab'|list }}{{ d|list }}{{ (1, 2)|list }}",
     "[3, 1, 2]['a', 'b']['b', 'a', 'items'][1, 2]"},
    {"{{ l|sum }}{{ objs[:2]|sum(attribute='k') }}{{ [[1], [2]]|sum(start=[]) }}{{ [0.1, 0.2]|sum "
     "}}",
     "63[1, 2]0.30000000000000004"},
    {"{{ l|length }}{{ d|count }}{{ s|length }}{{ u|length }}", "331113"},
    {"{{ nix|default('x') }}{{ e|default('x') }}|{{ e|default('x', true) }}{{ nul|d('y', "
     "boolean=true) }}{{ nix|d }}|{{ d.q|default([1]) }}",
     "x|xy|[1]"},
    {"{{ '12'|int }} {{ ' 1_0 '|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '1e2'|int }} {{ 3.9|int "
     "}} {{ -3.9|int }} {{ '0x1f'|int(base=16) }} {{ '11'|int(0, 2) }} {{ true|int }} {{ none|int "
     "}} {{ '3.7'|int }} {{ 'inf'|int }} {{ [1]|int(7) }}",
     "12 10 0 5 100 3 -3 31 3 1 0 3 0 7"},
    {"{{ '1.5'|float }} {{ 'x'|float }} {{ 'nan'|float }} {{ '-inf'|float }} {{ 3|float }} {{ ' "
     "1e3 '|float }} {{ 'x'|float(2) }} {{ '1_0.5'|float }} {{ '.5'|float }} {{ '5.'|float }} {{ "
     "'._5'|float }}",
     "1.5 0.0 nan -inf 3.0 1000.0 2 10.5 0.5 5.0 0.0"},
    {"{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 1234.5|round(-2) }} {{ 7|round }} {{ "
     "15|round(-1) }} {{ 25|round(-1) }} {{ 2.1|round(0, 'ceil') }} {{ 2.19|round(1, 'floor') }} "
     "{{ 42.55|round(1, 'ceil') }} {{ -2.5|round }} {{ 0.5|round }} {{ 7|round(1, 'floor') }}",
     "2.0 4.0 2.67 1200.0 7 20 20 3.0 2.1 42.6 -2.0 0.0 7.0"},
    {"{{ -3|abs }}{{ 2.5|abs }}{{ -2.5|abs }}{{ true|abs }}", "32.52.51"},
    {"{{ d|tojson }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ "
     "'a\"\\\\/\\n\\t\\x01\\x7f<>&'|tojson }}",
     "{\"b\": 1, \"a\": [1, \"x\"], \"items\": 5} \"Zürich ß 中文 🙂\" \"Z\\u00fcrich "
     "\\u00df "
     "\\u4e2d\\u6587 \\ud83d\\ude42\" \"a\\\"\\\\/\\n\\t\\u0001\177<>&\""},
    {"{{ {'a': [1, {'b': []}, {}], 'c': none}|tojson(indent=2) }}",
     "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    },\n    {}\n  ],\n  \"c\": null\n}"},
    {"{{ {'b': 1, 'a': 2.0}|tojson(sort_keys=true, separators=(',', ':')) }} {{ [1, 1.5, 1e20, "
     "true, none, 'x']|tojson }} {{ (1, 2)|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}",
     "{\"a\":2.0,\"b\":1} [1, 1.5, 1e+20, true, null, \"x\"] [1, 2] {\"1\": 4, \"null\": 3, "
     "\"1.5\": 5}"},
    {"{{ [1, [2]]|tojson(indent='--') }} {{ [1]|tojson(indent=0) }} {{ []|tojson(indent=4) }} {{ "
     "{'a': 1}|tojson(2) }} {{ {'a': 1}|tojson(indent=true) }}",
     "[\n--1,\n--[\n----2\n--]\n] [\n1\n] [] {\"a\": 1} {\n \"a\": 1\n}"},
    {"{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(2, "
     "first=true, blank=true) }}|{{ 'a\\nb\\n'|indent('> ') }}|{{ ''|indent(2, true) }}|{{ "
     "'a\\u2028b\\rc'|indent(1) }}",
     "a\n    b\n\n    c|  a\n  b|  a\n  \n  b|a\n> b\n|  |a\n b\n c"},
    {"{{ objs|selectattr('k')|list|length }}{{ objs|selectattr('k', "
     "'defined')|map(attribute='name')|join }}{{ objs|selectattr('name', 'equalto', 'a')|list }}{{ "
     "objs|rejectattr('k', 'defined')|list }}",
     "2Ba[{'name': 'a', 'k': 1}][{'name': 'b'}]"},
    {"{{ l|select('gt', 1)|list }}{{ l|select('odd')|list }}{{ l|reject('odd')|list }}{{ [0, 1, "
     "'', 'a']|select|list }}{{ [0, 1]|reject|list }}",
     "[3, 2][3, 1][2][1, 'a'][0]"},
    {"{{ l|map('string')|join('-') }}{{ ['a', 'b']|map('upper')|list }}{{ objs|map(attribute='k', "
     "default=0)|list }}{{ [[1, 2], [3]]|map('first')|list }}{{ ['a']|map('replace', 'a', "
     "'b')|list }}{{ d|map('upper')|list }}{{ nul|map('upper')|list }}{{ [{'a': {'b': "
     "1}}]|map(attribute='a.b')|list }}{{ [[5, 6]]|map(attribute=1)|list }}",
     "3-1-2['A', 'B'][2, 1, 0][1, 3]['b']['B', 'A', 'ITEMS'][][1][6]"},
    {"{{ l|map('string') is iterable }}{{ l|select is sequence }}{{ (l|select)|list|length }}{{ 1 "
     "if []|select else 2 }}{% set g = l|map('string') %}{{ g|list }}{{ g|list }}",
     "TrueFalse31['3', '1', '2'][]"},
    {"{{ d|items|list }}{% for k, v in d|items %}{{ k }}{% endfor %}{{ nix|items|list }}",
     "[('b', 1), ('a', [1, 'x']), ('items', 5)]baitems[]"},
    {"{{ '<a>'|e }}{{ '<a>'|escape|escape }}{{ '<a>'|e|forceescape }}{{ '\"\\'&'|e }}{{ '<'|safe + "
     "'<' }}{{ '<' + '>'|safe }}{{ '<'|safe ~ '<' }}{{ ('<'|safe)|upper + '<' }}{{ ['<'|safe] }}{{ "
     "('<b'|safe).replace('b', '>') }}{{ '<'|safe|string + '<' }}{{ '<'|safe|replace('x', 'y') + "
     "'<' }}{{ ('a'|safe * 2) + '<' }}{{ ('<'|safe)[0] + '&' }}{{ '<'|safe|tojson }}{{ "
     "'<'|safe|trim + '<' }}",
     "&lt;a&gt;&lt;a&gt;&amp;lt;a&amp;gt;&#34;&#39;&amp;<&lt;&lt;><<<&lt;[Markup('<')]<&gt;<&lt;<<"
     "aa&lt;<&amp;\"<\"<&lt;"},
    {"{{ '%s %s'|format('a', 1) }}{{ '%(x)s'|format(x=2) }}", "a 12"},
    {"{{ 'ab'|center(6) }}|{{ 'a'|center(4) }}|{{ 'abc'|center(2) }}|", "  ab  | a  |abc|"},
    {"{{ 1|string + 'a' }}{{ none|string }}{{ [1]|string }}{{ 1.0|string }}{{ true|string }}",
     "1aNone[1]1.0True"},
    {"{{ l is sequence }}{{ d is sequence }}{{ s is sequence }}{{ nix is sequence }}{{ n is "
     "sequence }}{{ l is iterable }}{{ n is iterable }}{{ nix is iterable }}{{ nul is iterable "
     "}}{{ d.items() is sequence }}{{ range(2) is sequence }}",
     "TrueTrueTrueTrueFalseTrueFalseTrueFalseFalseTrue"},
    {"{{ d is mapping }}{{ l is mapping }}{{ n is integer }}{{ t is integer }}{{ t is number }}{{ "
     "f is float }}{{ t is boolean }}{{ t is true }}{{ 1 is true }}{{ nul is none }}{{ nix is none "
     "}}{{ nix is undefined }}{{ s is string }}{{ s is callable }}{{ s.upper is callable }}{{ "
     "range is callable }}{{ 'a' is lower }}{{ 'A' is upper }}{{ 'a1' is lower }}{{ '1' is lower "
     "}}{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ '<'|e is escaped }}",
     "TrueFalseTrueFalseTrueTrueTrueTrueFalseTrueFalseTrueTrueFalseTrueTrueTrueTrueTrueFalseTrueFal"
     "seTrueTrue"},
    {"{{ {'z': 1}|list|first }}{{ l|sort|first|string|length }}", "z1"},
    {"{{ 'a,b'|upper|lower|title|trim|length }}", "3"},
    {"{{ [3, 1]|sort|tojson }}{{ [[2, 'a'], [1, 'b']]|sort }}{{ [true, 0, 2]|sort }}{{ [none, "
     "none]|sort }}",
     "[1, 3][[1, 'b'], [2, 'a']][0, True, 2][None, None]"},
    {"{{ ['a', 'b']|last|upper }}{{ (1, 2)|first }}{{ range(3)|last }}{{ range(3)|first }}{{ "
     "d.values()|list|last }}",
     "B1205"},
};

TEST(TemplateFiltersTest, AsInJinja2) {
  for (const Case& c : kFilters) EXPECT_EQ(Rendered(c.source), c.text) << c.source;
}

}  // namespace
}  // namespace flotilla
