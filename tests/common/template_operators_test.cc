// Operators, attributes, items and slices.
// All texts are what Python's jinja2 3.1 makes of their templates.
#include <gtest/gtest.h>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

constexpr Case kOperators[] = {
    {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7 // -2 }}",
     "3 -4 1 2 -2 3"},
    {"{{ 7 / 2 }} {{ 6 / 2 }} {{ 1 / 3 }}", "3.5 3.0 0.3333333333333333"},
    {"{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2.0 ** 0.5 }}",
     "1024 0.5 64 4 1.4142135623730951"},
    {"{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 5.5 % -2 }} {{ -0.5 % 1.0 }}",
     "3.0 -4.0 1.5 0.5 -0.5 0.5"},
    {"{{ true + true }} {{ true * 3 }} {{ -true }} {{ +true }}", "2 3 -1 1"},
    {"{{ 'a' * 3 }} {{ 3 * 'ab' }} {{ [1, 2] * 2 }} {{ 'a' * -1 }}|", "aaa ababab [1, 2, 1, 2] |"},
    {"{{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' + 'b' }}", "[1, 2] (1, 2) ab"},
    {"{{ 1 ~ 'a' ~ none ~ true ~ 1.5 ~ [1] ~ nix }}", "1aNoneTrue1.5[1]"},
    {"{{ 1 + 2 }}{{ 1 ~ 3 * 4 }}", "3112"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }}", "True False True"},
    {"{{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 2) }} {{ 'ä' > 'z' }}",
     "True True True True True"},
    {"{{ 1 == '1' }} {{ none == false }} {{ [1] == (1,) }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} "
     "}} {{ nix == nix2 }} {{ nix == none }}",
     "False False False True True False"},
    {"{{ 1 in [1, 2] }} {{ 'a' in 'cat' }} {{ 'x' not in d }} {{ 'a' in d }} {{ 1 in nix }} {{ "
     "true in [1] }} {{ '' in 'a' }}",
     "True True True True False True True"},
    {"{{ not true }} {{ not not 'a' }} {{ not nix }} {{ not 0 == 1 }}", "False True True True"},
    {"{{ 0 or 'x' }} {{ '' or none or 5 }} {{ 1 and 2 }} {{ 0 and 1 }} {{ 1 or nix.boom }}",
     "x 5 2 0 1"},
    {"{{ 'a' if t else 'b' }} {{ 'a' if not t }}|{{ 'a' if e else 'b' if nul else 'c' }}", "a |c"},
    {"{{ (1 if t else 2) + 3 }} {{ 1 if t else 2 + 3 }}", "4 1"},
    {"{{ l[0] }} {{ l[-1] }} {{ l[5] }}|{{ l['x'] }}|{{ s[0] }} {{ s[-1] }} {{ u[1] }} {{ u[-1] }}",
     "3 2 ||H d ü 🙂"},
    {"{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:] }} {{ l[2:0:-1] }}",
     "[1, 2] [3, 1] [2, 1, 3] [3, 2] [] [1, 2] [2, 1]"},
    {"{{ s[1:4] }} {{ s[::-1] }} {{ u[::-1] }} {{ u[2:9:2] }} {{ s[-5:] }} {{ s[:100] }} {{ "
     "s[none:2] }}",
     "ell dlroW olleH 🙂 文中 ß hcirüZ rc   World Hello World He"},
    {"{{ (1, 2, 3)[1:] }} {{ range(10)[2:8:2] }} {{ range(5)[-1] }} {{ range(3) == range(0, 3, 1) "
     "}}",
     "(2, 3) range(2, 8, 2) 4 True"},
    {"{{ d.a[1] }} {{ d['a'][0] }} {{ d.nope }}|{{ d['b'] }} {{ d.b }}", "x 1 |1 1"},
    {"{{ d.items is string }} {{ d['items'] }} {{ d.keys()|list }} {{ d.items() }} {{ d.values() "
     "}}",
     "False 5 ['b', 'a', 'items'] dict_items([('b', 1), ('a', [1, 'x']), ('items', 5)]) "
     "dict_values([1, [1, 'x'], 5])"},
    {"{{ s.upper() }} {{ s['upper']() }} {{ s.nope }}|{{ s['nope'] is defined }}",
     "HELLO WORLD HELLO WORLD |False"},
    {"{{ nul.x }}|{{ n.x }}|{{ none is defined }} {{ nul.x is defined }}", "||True False"},
    {"{{ d._x }}|{{ d.__class__ }}|{{ s.__len__ }}|{{ l.append }}|{{ l.append is defined }} {{ "
     "d.update is defined }}",
     "||||False False"},
    {"{{ 'a' 'b' == 'ab' }}", "True"},
    {"{{ -n }} {{ +f }} {{ -f }} {{ - -1 }} {{ -1 + 2 }} {{ 2 - -1 }}", "-7 2.5 -2.5 1 1 3"},
    {"{{ 1 if 0.0 else 2 }} {{ 1 if 0.1 else 2 }} {{ 1 if {} else 2 }} {{ 1 if range(0) else 2 }}",
     "2 1 2 2"},
    {"{{ 10 ** 18 }} {{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > "
     "9007199254740992.0 }}",
     "1000000000000000000 False True"},
    {"{{ 1 is number and 'a' is string }} {{ not 1 is number }}", "True False"},
    {"{{ 2 is divisibleby 2 }} {{ 3 is divisibleby(2) }} {{ 3 is odd }} {{ 4 is even }}",
     "True False True True"},
    {"{{ range(3) }} {{ range(1, 7, 2) }} {{ range(3)|list }} {{ range(5, 0, -2)|list }}",
     "range(0, 3) range(1, 7, 2) [0, 1, 2] [5, 3, 1]"},
    {"{{ nix }}|{{ nix is defined }}|{{ nix|default('x') }}|{{ nix|length }}|{{ nix ~ 'a' }}|{{ "
     "nix|list }}",
     "|False|x|0|a|[]"},
    {"{{ '%s-%d-%5.2f-%x-%r' % ('a', 3, 2.345, 255, 'q') }} {{ '%(a)s' % {'a': 1} }} {{ '%%' % () "
     "}} {{ '%05d|%-5s|%+d' % (42, 'ab', 3) }}",
     "a-3- 2.35-ff-'q' 1 % 00042|ab   |+3"},
    {"{{ '{} {1}'.format is defined }} {{ '{}-{}'.format(1, 'b') }} {{ '{1}{0}{x}'.format('a', "
     "'b', x=3) }} {{ '{:>5}|{:<4}|{:^5}|{:05d}|{:.2f}|{:,}|{!r}'.format('a', 'b', 'c', 42, 2.345, "
     "1234567, 'q') }} {{ '{{}}'.format() }}",
     "True 1-b ba3     a|b   |  c  |00042|2.35|1,234,567|'q' {}"},
    {"{{ '{0.b} {0[a][1]}'.format(d) }}", "1 x"},
    {"{{ l|length == 3 and l|first == 3 }}", "True"},
    {"{{ 1.0 == 1 }} {{ 1 is sameas 1.0 }} {{ true is sameas true }} {{ none is sameas none }}",
     "True False True True"},
    {"{{ 'a' is in ['a'] }} {{ 'b' is not in 'abc' }} {{ 1 is eq 1 }} {{ 1 is lt 2 }} {{ 'a' is "
     "equalto 'a' }}",
     "True False True True True"},
};

TEST(TemplateOperatorsTest, AsInPython) {
  for (const Case& c : kOperators) EXPECT_EQ(Rendered(c.source), c.text) << c.source;
}

}  // namespace
}  // namespace flotilla
