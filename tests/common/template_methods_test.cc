// Methods of str, list, tuple and dict, str.format and "%".
// All texts are what Python's jinja2 3.1 makes of their templates.
#include <gtest/gtest.h>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

constexpr Case kMethods[] = {
    {"{{ '  a b '.strip() }}|{{ 'xaxbx'.strip('x') }}|{{ 'abc'.lstrip('ba') }}|{{ "
     "'abc'.rstrip('cb') }}|{{ '\\u3000a\\u00a0'.strip() }}|{{ 'éaé'.strip('é') }}|{{ "
     "'a'.strip(none) }}",
     "a b|axb|c|a|a|a|a"},
    {"{{ 'a b  c'.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ ' a b '.split(' "
     "') }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a b c '.split(none, 1) }}{{ 'abc'.split('b', "
     "maxsplit=0) }}{{ 'a<>b'.split(sep='<>') }}",
     "['a', 'b', 'c']['a', 'b', '', 'c']['a', 'b,c']['', 'a', 'b', ''][]['']['a', 'b c "
     "']['abc']['a', 'b']"},
    {"{{ 'a b  c'.rsplit(none, 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b '.rsplit() }}{{ "
     "'a,b'.rsplit(',') }}",
     "['a b', 'c']['a,b', 'c']['a', 'b']['a', 'b']"},
    {"{{ 'a\\nb\\r\\nc\\rd\\x0be\\u2028f'.splitlines() }}{{ 'a\\nb\\n'.splitlines(true) }}{{ "
     "''.splitlines() }}{{ '\\n'.splitlines() }}",
     "['a', 'b', 'c', 'd', 'e', 'f']['a\\n', 'b\\n'][]['']"},
    {"{{ 'abc'.startswith('ab') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('c') }}{{ "
     "'abc'.startswith('b', 1) }}{{ 'abc'.endswith('b', 0, 2) }}{{ ''.startswith('') }}{{ "
     "'a'.startswith('', 5) }}",
     "TrueTrueTrueTrueTrueTrueFalse"},
    {"{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'a'.find('x') }}{{ 'ñbñb'.find('b', 2) "
     "}}{{ 'abc'.index('b') }}{{ 'aXbX'.rindex('X') }}{{ 'aaa'.count('a') }}{{ 'aaa'.count('aa') "
     "}}{{ 'ab'.count('') }}{{ 'abc'.find('', 3) }}{{ 'abc'.find('', 4) }}{{ 'abc'.find('c', -1) "
     "}}{{ 'abc'.count('b', 0, -1) }}",
     "25-13133133-121"},
    {"{{ 'aXbX'.replace('X', '-') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.replace('', '.') }}{{ "
     "'ab'.replace('', '.', 2) }}{{ ''.replace('', 'x') }}{{ 'a'.replace('a', '') }}{{ "
     "'a'.replace('b', 'c') }}{{ 'ab'.replace('b', 'é', -1) }}",
     "a-b-bba.a.b..a.bxaaé"},
    {"{{ 'hELLO wORLD'.capitalize() }}{{ \"it's a test-case\".title() }}{{ 'aBc'.swapcase() }}{{ "
     "'straße'.upper() }}{{ 'ǆ'.title() }}{{ 'ŉ'.upper() }}{{ 'İ'.lower() }}{{ 'ﬁx'.capitalize() "
     "}}{{ 'ΌΣΟΣ'.lower() }}",
     "Hello worldIt'S A Test-CaseAbCSTRASSEǅʼNi̇Fixόσος"},
    {"{{ ', '.join(['a', 'b']) }}{{ '-'.join('abc') }}{{ ''.join(d) }}{{ '.'.join(l|map('string')) "
     "}}",
     "a, ba-b-cbaitems3.1.2"},
    {"{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}|{{ 'ab'.center(5, '-') }}|{{ 'abc'.center(6) "
     "}}|{{ '-5'.zfill(4) }}|{{ 'é'.ljust(3, 'ü') }}|{{ 'a\\tb'.expandtabs(4) }}|",
     "a  |**a|--ab-| abc  |-005|éüü|a   b|"},
    {"{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('x') }}{{ "
     "'abc'.rpartition('x') }}",
     "('a', '-', 'b-c')('a-b', '-', 'c')('abc', '', '')('', '', 'abc')"},
    {"{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ 'abc'.removeprefix('x') }}",
     "bcababc"},
    {"{{ 'a1'.isalnum() }}{{ 'a'.isalpha() }}{{ '1'.isdigit() }}{{ ''.isdigit() }}{{ ' "
     "\\t'.isspace() }}{{ 'Ab'.istitle() }}{{ 'AB'.isupper() }}{{ 'é'.islower() }}{{ "
     "'a\\n'.isprintable() }}{{ ''.isprintable() }}{{ 'é'.isascii() }}{{ 'ª'.islower() }}{{ "
     "'ǅ'.istitle() }}{{ '1a'.islower() }}",
     "TrueTrueTrueFalseTrueTrueTrueTrueFalseTrueFalseTrueTrueTrue"},
    {"{{ d.get('a') }}{{ d.get('q') }}{{ d.get('q', 5) }}{{ d.keys() }}{{ d.values()|list }}{{ "
     "d.copy() == d }}{{ d.get(1) }}{{ d.items()|list }}{{ d.items()|length }}",
     "[1, 'x']None5dict_keys(['b', 'a', 'items'])[1, [1, 'x'], 5]TrueNone[('b', 1), ('a', [1, "
     "'x']), ('items', 5)]3"},
    {"{{ l.index(1) }}{{ l.count(3) }}{{ (1, 2, 1).count(1) }}{{ l.copy() }}{{ [1.0, "
     "true].count(1) }}",
     "112[3, 1, 2]2"},
    {"{{ d.get('a').index('x') }}", "1"},
    {"{{ 'x' in d.keys() }}{{ 1 in d.values() }}{{ ('b', 1) in d.items() }}", "FalseTrueTrue"},
    {"{{ '{:d}|{:5}|{:>8.3f}|{:e}|{:%}|{:x}|{:#x}|{:b}|{:+d}|{: d}|{:_}'.format(5, 3, 3.14159, "
     "12345.678, 0.25, 255, 255, 5, 7, 7, 12345678) }}",
     "5|    3|   3.142|1.234568e+04|25.000000%|ff|0xff|101|+7| 7|12_345_678"},
    {"{{ '{:*^9}|{:é<3}|{:.3}|{:5s}|{:<5}|{:>5}|{}|{}'.format('mid', 'a', 'abcdef', 'x', true, "
     "none|string, none, [1]) }}",
     "***mid***|aéé|abc|x    |1    | None|None|[1]"},
    {"{{ '%5s|%-5s|%.2s|%c|%c|%i|%u|%o|%X|%#x|%e|%g|%G' % ('a', 'b', 'cde', 'f', 65, 7, 8, 9, 255, "
     "255, 1234.5, 0.0001, 1e10) }}",
     "    a|b    |cd|f|A|7|8|11|FF|0xff|1.234500e+03|0.0001|1E+10"},
    {"{{ '%s' % nix }}|{{ '%s' % [1, 2] }}|{{ '%s %s' % (1, none) }}|{{ '%r' % 'a' }}|{{ '%d' % "
     "3.9 }}|{{ '%*d' % (5, 42) }}|{{ '%.3d' % 7 }}|{{ '% d' % 5 }}|{{ '%+.1f' % 2.25 }}|{{ 'abc' "
     "% {} }}|{{ '%08.3f' % -3.14159 }}|{{ '%+05d' % 42 }}",
     "|[1, 2]|1 None|'a'|3|   42|007| 5|+2.2|abc|-003.142|+0042"},
    {"{{ '{:<05}|{:>05}|{:x<05}|{:^05}|{:<+05}|{:05}'.format(5, 'a', 5, 5, 5, -5) }}",
     "50000|0000a|5xxxx|00500|+5000|-0005"},
    {"{% set least = -9223372036854775807 - 1 %}{{ 'a'.zfill(least) }}{{ 'a'.ljust(least) }}{{ "
     "'a'.center(least) }}{{ 'a'.rjust(-5) }}",
     "aaaa"},
    {"{{ 'a b  c d'.rsplit(none, 2) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a\r\nb\n\nc'.splitlines() "
     "}}{{ 'a\n'.splitlines(true) }}{{ ''.splitlines() }}",
     "['a b', 'c', 'd']['a,b', 'c']['a', 'b', '', 'c']['a\\n'][]"},
};

TEST(TemplateMethodsTest, AsInPython) {
  for (const Case& c : kMethods) EXPECT_EQ(Rendered(c.source), c.text) << c.source;
}

}  // namespace
}  // namespace flotilla
