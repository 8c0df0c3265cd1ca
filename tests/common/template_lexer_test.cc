// White space around tags, comments, raw blocks, and literals.
// All texts are what Python's jinja2 3.1 makes of their templates.
#include <gtest/gtest.h>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

constexpr Case kWhiteSpace[] = {
    {"a\n", "a"},
    {"a\n\n", "a\n"},
    {"\n", ""},
    {"", ""},
    {"a\r\nb\rc\r\n", "a\nb\nc"},
    {"  {% if t %}\n  x\n  {% endif %}\n  y", "  x\n  y"},
    {"{% if t %}\nx\n{% endif %}\n", "x\n"},
    {"a {%- if t -%} b {%- endif -%} c", "abc"},
    {"a  {%+ if t %}b{% endif +%}\n c", "a  b\n c"},
    {"  {%+ if t +%}\n x {% endif %}", "  \n x "},
    {"x {{- s -}} y", "xHello Worldy"},
    {"x\n  {{ s }}\n  y", "x\n  Hello World\n  y"},
    {"  {{- s }}", "Hello World"},
    {"a\n   {# c #}\n b", "a\n b"},
    {"a {#- c -#} b", "ab"},
    {"a\n {#+ c +#}\n b", "a\n \n b"},
    {"{# {{ x }} {% if %} #}z", "z"},
    {"{% raw %}{{ a }} {% b %}{% endraw %}", "{{ a }} {% b %}"},
    {"a {%- raw -%} {{ x }} {%- endraw -%} b", "a{{ x }}b"},
    {"  {% raw %}\n x\n  {% endraw %}\n y", "\n x\n y"},
    {"{% raw %}{% endra %}{%   endraw   %}!", "{% endra %}!"},
    {"{%- set x = 1 -%}\n\n{{ x }}\n\n", "1\n"},
    {"\t{% set x = 1 %}\t{{ x }}", "\t1"},
    {"a\302\240{%- if t %}\343\200\200{% endif -%}\342\200\203b", "a\343\200\200b"},
    {"{% if t %}a{% endif %}\n\nb", "a\nb"},
    {"{% for i in l %}\n  {{ i }}\n{% endfor %}\ndone", "  3\n  1\n  2\ndone"},
    {"{{ '{{' }} }} %} #}", "{{ }} %} #}"},
    {"{ { } }", "{ { } }"},
    {"{", "{"},
    {"a{", "a{"},
    {"{{ {'a': {'b': 1}}['a']['b'] }}", "1"},
    {"{{ [[1]][0][0] }}", "1"},
    {"line1\n{% set a %}\n  in\n{% endset %}\n[{{ a }}]", "line1\n[  in\n]"},
    {"{%if t%}x{%endif%}", "x"},
    {"{{s}}{{n}}", "Hello World7"},
    {"{%\nif\nt\n%}\nx{% endif %}", "x"},
    {"a\n  {% if t %} b {% endif %}  \nc", "a\n b   \nc"},
    {"   {%- if t %}\n   q\n   {%- endif %}\n   r", "   q   r"},
    {"{{ s -}}   \n  x", "Hello Worldx"},
    {"{% if t -%}\n   x\n{%- endif %} y", "x y"},
    {"{#-#}a", "a"},
    {"x{##}y", "xy"},
    {"a {{+ s }} b", "a Hello World b"},
};

constexpr Case kLiterals[] = {
    {"{{ 'a\\nb\\t\\x41\\u00e9\\U0001F642\\101\\q\\'' }}", "a\nb\tAé🙂A\\q'"},
    {"{{ \"it's\" ~ 'a' 'b' }}", "it'sab"},
    {"{{ '\\é\\中' }}", "\\xe9\\u4e2d"},
    {"{{ 'a\\\nb' }}", "ab"},
    {"{{ 1_000 + 0x1F + 0b101 + 0o17 }}", "1051"},
    {"{{ 1.5e3 }} {{ 1e-7 }} {{ 1E16 }} {{ 0.1 + 0.2 }} {{ 1_0.5 }}",
     "1500.0 1e-07 1e+16 0.30000000000000004 10.5"},
    {"{{ true }} {{ True }} {{ none }} {{ None }} {{ false }}", "True True None None False"},
    {"{{ [1, 'a', none, true, 1.0, [], {}, ()] }}", "[1, 'a', None, True, 1.0, [], {}, ()]"},
    {"{{ (1,) }} {{ () }} {{ (1, 2) }} {{ (1) }}", "(1,) () (1, 2) 1"},
    {"{{ {'a': 1, 'b': [1, 'x'], 2: none, true: 3} }}",
     "{'a': 1, 'b': [1, 'x'], 2: None, True: 3}"},
    {"{{ 1, 2 }}", "(1, 2)"},
    {"{{ [1, 2,] }} {{ {'a': 1,} }}", "[1, 2] {'a': 1}"},
    {"{{ \"a'b\" }} {{ [\"a'b\", 'a\"b', 'a\\'\"b', 'a\\\\b'] }}",
     "a'b [\"a'b\", 'a\"b', 'a\\'\"b', 'a\\\\b']"},
    {"{{ ['\\n\\t\\r\\x00\\x7f\\xa0é中🙂\\u200b\\ue000'] }}",
     "['\\n\\t\\r\\x00\\x7f\\xa0é中🙂\\u200b\\ue000']"},
    {"{{ 12.0 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1e22 }} {{ 0.0001 }} {{ 0.00001 }} {{ "
     "-0.0 }}",
     "12.0 1000000000000000.0 1.2345678901234568e+17 1e+22 0.0001 1e-05 -0.0"},
    {"{{ l.0 }} {{ l.1 }}", "3 1"},
    {"{{ 9223372036854775807 }}", "9223372036854775807"},
    {"{{ {'x': undefined_thing} }} {{ [undefined_thing] }}", "{'x': Undefined} [Undefined]"},
    {"{{ 3.0 * 2 }} {{ 2.50 }}", "6.0 2.5"},
    {"{{ 'é'|length }}{{ u|length }}", "113"},
};

TEST(TemplateLexerTest, WhiteSpaceAroundTags) {
  for (const Case& c : kWhiteSpace) EXPECT_EQ(Rendered(c.source), c.text) << c.source;
}

TEST(TemplateLexerTest, Literals) {
  for (const Case& c : kLiterals) EXPECT_EQ(Rendered(c.source), c.text) << c.source;
}

}  // namespace
}  // namespace flotilla
