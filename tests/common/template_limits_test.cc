// Hostile templates end with an error that names the limit, soon, and without harm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/common/template_testing.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(TemplateLimitsTest, Source) {
  ChatTemplateLimits limits;
  limits.max_source_bytes = 10;
  EXPECT_EQ(Rendered("0123456789", {}, limits), "0123456789");
  EXPECT_THAT(Rendered("0123456789a", {}, limits), HasSubstr("max_source_bytes = 10"));
}

// Each would overflow the stack of a parser, interpreter or destructor that trusted its input.
TEST(TemplateLimitsTest, Nesting) {
  constexpr int kMany = 20'000;
  const std::string open[] = {"(", "[", "{1:", "f(", "a[", "not ", "-", "1 if "};
  for (const std::string& part : open) {
    EXPECT_THAT(Rendered("{{ " + Repeat(part, kMany)), HasSubstr("max_nesting = 200")) << part;
  }
  const std::string chain[] = {
      " + a", ".a", "[0]", "()", "|e", " or a", " if b else c", " ** 1", " is defined is defined"};
  for (const std::string& part : chain) {
    const std::string text = Rendered("{{ a" + Repeat(part, kMany) + " }}");
    EXPECT_THAT(text, HasSubstr("error: ")) << part;
  }
  for (const std::string_view tag :
       {"{% if a %}", "{% for a in b %}", "{% macro m() %}", "{% set a %}", "{% filter e %}",
        "{% with %}", "{% call f() %}", "{% generation %}"}) {
    EXPECT_THAT(Rendered(Repeat(tag, kMany)), HasSubstr("max_nesting = 200")) << tag;
  }
}

TEST(TemplateLimitsTest, WideSourcesAreFine) {
  EXPECT_EQ(Rendered("{{ [" + Repeat("1,", 20'000) + "]|length }}"), "20000");
  EXPECT_EQ(Rendered("{{ (" + Repeat("'a' ~ ", 20'000) + "'')|length }}"), "20000");
  EXPECT_EQ(Rendered("{% if nix %}" + Repeat("{% elif nix %}", 20'000) + "{% else %}x{% endif %}"),
            "x");
  EXPECT_EQ(Rendered(Repeat("{% set a = 1 %}", 20'000) + "{{ a }}"), "1");
  EXPECT_EQ(Rendered("{{ a" + Repeat(" is defined == a", 20'000) + " }}"), "False");
}

TEST(TemplateLimitsTest, Steps) {
  ChatTemplateLimits limits;
  limits.max_steps = 100'000;
  for (const std::string_view source : {
           "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
           "{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n > 0 else '' }}{% endmacro %}{{ f(40) }}",
           "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
           "{% endfor %}{{ ns.x == [ns.x[0], [ns.x[0][0], ns.x[0][0]]] }}{{ ns.x|string|length }}",
           "{% for a in range(1000) %}{{ dict([[1, 2]] * 1000) == 1 }}{% endfor %}",
           "{{ range(100000)|map('string')|map('upper')|map('lower')|join|length }}",
           // Items that are the same object, long keys and affixes: all are walked over.
           "{% set a = [none] * 10000 %}{% set b = [none] * 10000 %}{% for i in range(1000) %}"
           "{{ a == b }}{% endfor %}",
           "{% set a = [none] * 10000 %}{% set b = [none] * 10000 %}{% for i in range(1000) %}"
           "{{ a < b }}{% endfor %}",
           "{% set a = [none] * 10000 %}{% for i in range(1000) %}{{ a.count(none) }}{% endfor %}",
           "{% set k = 'k' * 100000 %}{% set d = {k: 1} %}{% for i in range(1000) %}{{ d[k] }}"
           "{% endfor %}",
           "{% set t = 'a' * 100000 %}{{ t.startswith((t ~ 'b',) * 1000) }}",
           "{{ ('%(k)s' * 1000000) % {'k': ''} }}",
           "{{ ('{k}' * 2000000).format(k='') }}",
       }) {
    EXPECT_THAT(Rendered(source, {}, limits), HasSubstr("max_steps = 100000")) << source;
  }
}

TEST(TemplateLimitsTest, Output) {
  ChatTemplateLimits limits;
  limits.max_output_bytes = 1000;
  EXPECT_THAT(Rendered("{% for a in range(1000) %}xx{% endfor %}", {}, limits),
              HasSubstr("max_output_bytes = 1000"));
  // What is not shown does not count.
  EXPECT_EQ(Rendered("{{ ('x' * 2000)|length }}", {}, limits), "2000");
}

TEST(TemplateLimitsTest, Values) {
  ChatTemplateLimits limits;
  limits.max_value_bytes = 1 << 20;
  const std::string doubling = "{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
  const std::string doubled_text = "{% set ns = namespace(x='a') %}" + doubling;
  const std::string doubled_list = "{% set ns = namespace(x=[1]) %}" + doubling;
  for (const std::string_view source : std::initializer_list<std::string_view>{
           "{{ ('a' * 1000000000000)|length }}",
           "{{ ([1] * 1000000000)|length }}",
           doubled_text,
           doubled_list,
           "{{ 'a'.center(1000000000) }}",
           "{{ 'a'.ljust(1000000000) }}",
           "{{ 'a'.zfill(1000000000) }}",
           "{{ ('a\\t' * 1000).expandtabs(1000000) }}",
           "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
           "{{ ('a' * 1000).replace('', 'b' * 100000) }}",
           "{{ ('b' * 10000).join(['a'] * 1000) }}",
           "{{ (['a'] * 1000)|join('b' * 10000) }}",
           "{{ '%1000000000d' % 1 }}",
           "{{ '%*d' % (1000000000, 1) }}",
           "{{ '{:1000000000}'.format(1) }}",
           "{{ ('a\\n' * 1000)|indent(10000) }}",
           "{{ ([[]] * 100)|tojson(indent=100000) }}",
           "{{ ([['a' * 10000] * 100] * 100)|string }}",
           "{{ ([['a' * 10000] * 100] * 100)|tojson }}",
           "{% for a in range(100000) %}{% set b = namespace(x=a) %}{% endfor %}",
           ("{% for a in range(1000) %}{% macro f() %}{% endmacro %}"
            "{% set b = [f] * 100 %}{% endfor %}"),
           "{{ range(100000)|list|map('string')|list|unique|list|length }}",
           "{% set k = 'k' * 10000 %}{% for i in range(1000) %}{{ {}[k] }}{% endfor %}",
           "{% for i in range(20000) %}{{ nix }}{% endfor %}",
           ("{% set ns = namespace(p=[]) %}{% for i in range(100) %}"
            "{% set ns.p = ns.p + [[i ~ '', i]] %}{% endfor %}{% set d = dict(ns.p) %}"
            "{% for i in range(1000) %}{% set x = namespace(d) %}{% endfor %}"),
           "{% macro f() %}{% endmacro %}{% for i in range(10000) %}{{ f() }}{% endfor %}",
           // Made and thrown away again, or of many small parts.
           "{% for i in range(1000) %}{{ 1|tojson(indent=100000) }}{% endfor %}",
           "{% for i in range(1000) %}{{ 'a'|indent(100000) }}{% endfor %}",
           ("{% set w = ' ' * 100000 %}"
            "{% for i in range(1000) %}{{ 1|tojson(indent=w) }}{% endfor %}"),
           "{% set big = range(10000)|list %}{{ range(1000)|map('map', *big)|list|length }}",
           ("{% set big = range(10000)|list %}"
            "{{ range(1000)|map('select', 'in', *big)|list|length }}"),
           "{{ ('\n' * 100000).splitlines()|length }}",
           "{{ (',' * 100000).split(',')|length }}",
           "{{ (',' * 100000).rsplit(',')|length }}",
           "{{ ('a ' * 100000).split()|length }}",
           "{{ [1]|map(attribute='1.' * 100000)|list }}",
           "{{ ('&' * 500000)|e|length }}",
           "{{ ('\x01' * 300000)|tojson|length }}",
       }) {
    EXPECT_THAT(Rendered(source, {}, limits), HasSubstr("max_value_bytes = 1048576")) << source;
  }
}

TEST(TemplateLimitsTest, InputsCountAsValues) {
  ChatTemplateLimits limits;
  limits.max_value_bytes = 10'000;
  ChatTemplateInput input;
  input.messages = boost::json::string(std::string(20'000, 'x'));
  EXPECT_THAT(Rendered("a", input, limits), HasSubstr("max_value_bytes"));
}

TEST(TemplateLimitsTest, Depth) {
  for (const std::string_view source : {
           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
           "{% macro f(n) %}{% if n %}{% for i in [1] %}{{ [f(n)]|join }}{% endfor %}{% endif %}"
           "{% endmacro %}{{ f(1) }}",
           "{% macro f() %}{% call f() %}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}",
           "{% set ns = namespace(g=[1]) %}{% for i in range(5000) %}"
           "{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}",
           "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
       }) {
    EXPECT_THAT(Rendered(source), HasSubstr("max_depth = 600")) << source;
  }
}

TEST(TemplateLimitsTest, ValueDepth) {
  for (const std::string_view source : {
           "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
           "{% endfor %}",
           "{% set ns = namespace(x=()) %}{% for i in range(5000) %}{% set ns.x = (ns.x,) %}"
           "{% endfor %}",
           "{% set ns = namespace(x={}) %}{% for i in range(5000) %}{% set ns.x = {1: ns.x} %}"
           "{% endfor %}",
           "{% set ns = namespace(x={}) %}{% for i in range(5000) %}"
           "{% set ns.x = dict(a=ns.x.items()) %}{% endfor %}",
           "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x.count] %}"
           "{% endfor %}",
       }) {
    EXPECT_THAT(Rendered(source), HasSubstr("max_value_depth = 100")) << source;
  }
  boost::json::value deep = 1;
  for (int i = 0; i < 5000; ++i) deep = boost::json::array{std::move(deep)};
  ChatTemplateInput input;
  input.messages = std::move(deep);
  EXPECT_THAT(Rendered("x", input), HasSubstr("max_depth"));
}

TEST(TemplateLimitsTest, Range) {
  ChatTemplateLimits limits;
  limits.max_range = 10;
  EXPECT_EQ(Rendered("{{ range(10)|length }}", {}, limits), "10");
  EXPECT_THAT(Rendered("{{ range(11) }}", {}, limits), HasSubstr("max_range is 10"));
  EXPECT_THAT(Rendered("{{ range(-9223372036854775807, 9223372036854775807) }}"),
              HasSubstr("max_range is 100000"));
}

// Chains and circles of objects that hold each other, which must be let go without recursion.
TEST(TemplateLimitsTest, ChainsOfObjectsAreReleased) {
  EXPECT_EQ(Rendered("{% set ns = namespace(p=none) %}{% for i in range(50000) %}"
                     "{% set ns.p = namespace(p=ns.p) %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(Rendered("{% set ns = namespace(p=[]) %}{% for i in range(50000) %}"
                     "{% set ns.p = ns.p|map('string') %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(Rendered("{% set ns = namespace() %}{% for i in l %}{% set ns.l = loop %}"
                     "{% set ns.n = ns %}{% macro m() %}{{ i }}{% endmacro %}{% set ns.m = m %}"
                     "{% endfor %}{{ ns.l.index }}"),
            "3");
}

// Linear: the product of these lengths would take minutes.
TEST(TemplateLimitsTest, Searching) {
  EXPECT_EQ(Rendered("{% set t = 'a' * 4000000 %}{% set p = 'a' * 2000000 %}"
                     "{{ t.find(p ~ 'b') }} {{ t.rfind('b' ~ p) }} {{ p ~ 'b' in t }} "
                     "{{ t.count(p ~ 'b') }} {{ t.split(p ~ 'b')|length }} "
                     "{{ t.rsplit('b' ~ p)|length }}"),
            "-1 -1 False 0 1 1");
}

TEST(TemplateLimitsTest, Messages) {
  const std::string text = Rendered("{{ raise_exception('é' * 100000) }}");
  EXPECT_THAT(text, HasSubstr("line 1: éé"));
  EXPECT_EQ(text.substr(text.size() - 5), "é…");
  EXPECT_LT(text.size(), 1100u);
  EXPECT_LT(Rendered("{{ " + std::string(100'000, 'x') + "('a') }}").size(), 1100u);
  EXPECT_LT(Rendered("{% " + std::string(100'000, 'x') + " %}").size(), 1100u);
}

TEST(TemplateLimitsTest, SmallestIntegers) {
  EXPECT_THAT(Rendered("{{ (-9223372036854775807 - 1) // -1 }}"), HasSubstr("64 bits"));
  EXPECT_EQ(Rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_THAT(Rendered("{{ -(-9223372036854775807 - 1) }}"), HasSubstr("64 bits"));
  EXPECT_THAT(Rendered("{{ (-9223372036854775807 - 1)|abs }}"), HasSubstr("64 bits"));
  EXPECT_EQ(Rendered("{{ '%d' % (-9223372036854775807 - 1) }}"), "-9223372036854775808");
  EXPECT_EQ(Rendered("{{ s[::-9223372036854775807 - 1] }}|{{ s[9223372036854775807:] }}"), "d|");
  EXPECT_EQ(Rendered("{{ 'a' * (-9223372036854775807 - 1) }}"), "");
  EXPECT_THAT(Rendered("{{ range(5)[::9223372036854775807] }}"),
              HasSubstr("range(0, 5, 9223372036854775807)"));
}

}  // namespace
}  // namespace flotilla
