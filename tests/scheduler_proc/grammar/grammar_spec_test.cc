#include "scheduler_proc/grammar/grammar_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kBytes = 1000;

StatusOr<GrammarSpec> Schema(const std::string& text) {
  v1::StructuredOutput in;
  in.set_json_schema(text);
  return ReadStructured(in, kBytes);
}

TEST(GrammarSpecTest, KindsAndTexts) {
  v1::StructuredOutput in;
  in.set_regex("a+");
  EXPECT_EQ(*ReadStructured(in, kBytes), (GrammarSpec{GrammarKind::kRegex, "a+"}));
  in.set_regex("1234567890{2,123456789}[{]1234567890");
  EXPECT_TRUE(ReadStructured(in, kBytes).ok());
  in.set_ebnf("root ::= \"a\"");
  EXPECT_EQ(*ReadStructured(in, kBytes), (GrammarSpec{GrammarKind::kEbnf, "root ::= \"a\""}));
  in.set_json_object(true);
  EXPECT_EQ(*ReadStructured(in, kBytes), (GrammarSpec{GrammarKind::kJsonObject, ""}));
  EXPECT_EQ(*Schema("{\"type\":\"string\"}"),
            (GrammarSpec{GrammarKind::kJsonSchema, "{\"type\":\"string\"}"}));
}

TEST(GrammarSpecTest, ChoicesBecomeOneRule) {
  v1::StructuredOutput in;
  for (const std::string option : {"yes", "say \"no\"", "a\\b\n", "ä"})
    in.mutable_choice()->add_options(option);
  const auto spec = ReadStructured(in, kBytes);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->text, R"(root ::= "yes" | "say \"no\"" | "a\\b\u000a" | "ä")");
}

TEST(GrammarSpecTest, RefusalsNameTheField) {
  struct Case {
    const char* field;
    const char* what;
    void (*set)(v1::StructuredOutput*);
  };
  const Case cases[] = {
      {"structured: ", "none", [](auto*) {}},
      {"structured.regex: ", "empty", [](auto* in) { in->set_regex(std::string()); }},
      {"structured.regex: ", "at most 1000",
       [](auto* in) { in->set_regex(std::string(1001, 'a')); }},
      {"structured.regex: ", "999999999", [](auto* in) { in->set_regex("a{1,1234567890}"); }},
      {"structured.ebnf: ", "zero byte", [](auto* in) { in->set_ebnf(std::string("a\0", 2)); }},
      {"structured.json_object: ", "true", [](auto* in) { in->set_json_object(false); }},
      {"structured.json_schema: ", "not valid JSON", [](auto* in) { in->set_json_schema("{"); }},
      {"structured.json_schema: ", "twice",
       [](auto* in) { in->set_json_schema(R"({"a":1,"a":2})"); }},
      {"structured.choice: ", "0 options", [](auto* in) { in->mutable_choice(); }},
      {"structured.choice.options[1]: ", "empty",
       [](auto* in) {
         in->mutable_choice()->add_options(std::string("a"));
         in->mutable_choice()->add_options(std::string());
       }},
      {"structured.choice: ", "bytes",
       [](auto* in) { in->mutable_choice()->add_options(std::string(1001, 'a')); }},
      {"structured.choice: ", "1025 options",
       [](auto* in) {
         for (int i = 0; i < 1025; ++i) in->mutable_choice()->add_options(std::string("a"));
       }},
  };
  for (const Case& c : cases) {
    v1::StructuredOutput in;
    c.set(&in);
    const Status status = ReadStructured(in, kBytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field << c.what;
    EXPECT_THAT(std::string(status.message()), StartsWith(c.field));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.what));
  }
}

TEST(GrammarSpecTest, KeywordsWithoutEffectAreRefusedWhereverTheyStand) {
  for (const char* schema : {
           R"({"not":{}})",
           R"({"type":"array","uniqueItems":true})",
           R"({"properties":{"a":{"if":{},"then":{}}}})",
           R"({"items":{"contains":{}}})",
           R"({"anyOf":[{"type":"null"},{"dependentRequired":{}}]})",
           R"({"$defs":{"a":{"not":{}}},"type":"null"})",
           R"({"prefixItems":[{"not":{}}]})",
           R"({"anyOf":[{"type":"null"}],"required":["a"]})",
           R"({"$ref":"#","minLength":3})",
           R"({"items":[{"type":"null"}]})",
           R"({"anyOf":[]})",
           R"({"type":"string","pattern":"a\"b"})",
           R"({"type":"string","pattern":"a\\\\b"})",
           R"({"type":"string","pattern":"[a\\n]"})",
           R"({"type":"string","pattern":"[^a]\\t"})",
           R"({"type":"string","pattern":"a","format":"date"})",
           R"({"type":"string","pattern":"a+","maxLength":3})",
           R"({"pattern":"a"})",
           R"({"maxLength":3})",
           R"({"minimum":3})",
           R"({"required":["a"]})",
           R"({"minItems":1})",
           R"({"properties":{},"minItems":1,"items":{}})",
           R"({"type":"object","anyOf":[{"type":"null"}]})",
           R"({"type":"null","$ref":"#"})",
           R"({"type":"string","enum":["a",3]})",
           R"({"type":["null","integer"],"const":1.5})",
           R"({"enum":["ab"],"maxLength":1})",
           R"({"const":1,"enum":[2]})",
           R"({"properties":3})",
           R"([])",
           R"(3)",
       }) {
    const Status status = Schema(schema).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(std::string(status.message()), StartsWith("structured.json_schema: ")) << schema;
  }
}

TEST(GrammarSpecTest, RefusalsNameThePlace) {
  const auto place = [](const char* schema) {
    const std::string message(Schema(schema).status().message());
    const size_t at = message.find(" (at ");
    return at == std::string::npos ? std::string() : message.substr(at);
  };
  EXPECT_EQ(place(R"({"type":"array","uniqueItems":true})"), "");
  EXPECT_EQ(place(R"({"properties":{"b":{"type":"null"},"a":{"items":{"maxLength":3}}}})"),
            " (at #/properties/a/items)");
  EXPECT_EQ(place(R"({"$defs":{"f":{"anyOf":[{"type":"null"},{"not":{}}]}},"type":"null"})"),
            " (at #/$defs/f/anyOf/1)");
  EXPECT_EQ(place(R"({"properties":{"a":{"required":["x"],"additionalProperties":false}}})"),
            " (at #/properties/a)");
  EXPECT_EQ(place(R"({"properties":{"a/b~":{"not":{}}}})"), " (at #/properties/a~1b~0)");
  const std::string name(63, 'n');
  EXPECT_EQ(place(StrCat(R"({"properties":{")", name, R"(üx":{"not":{}}}})").c_str()),
            StrCat(" (at #/properties/", name, "…)"));
}

TEST(GrammarSpecTest, NamesOfPropertiesAreStrings) {
  EXPECT_EQ(Schema(R"({"type":"object","propertyNames":{"pattern":"^a$"}})")->text,
            R"({"type":"object","propertyNames":{"pattern":"^a$","type":"string"}})");
  EXPECT_EQ(Schema(R"({"type":"object","propertyNames":{"enum":["a"]}})")->text,
            R"({"type":"object","propertyNames":{"enum":["a"]}})");
}

TEST(GrammarSpecTest, NamesAndValuesAreNoKeywords) {
  for (const char* schema : {
           R"({"type":"object","properties":{"not":{"type":"string"},"if":{"type":"null"}}})",
           R"({"enum":[{"not":1},"uniqueItems"]})",
           R"({"const":{"if":2},"description":"not","default":{"not":3}})",
           R"({"type":"array","uniqueItems":false})",
           R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}},"description":"x"})",
           R"(true)",
           R"({"type":"string","pattern":"^[^\"\\\\\\n]+\\d\\.$"})",
           R"({"type":"string","enum":["a","b"]})",
           R"({"type":["string","null"],"enum":["a",null]})",
           R"({"type":"number","const":3})",
           R"({"properties":{},"required":[]})",
           R"({"items":{},"minItems":1})",
           R"({})",
       }) {
    EXPECT_TRUE(Schema(schema).ok()) << schema << Schema(schema).status();
  }
}

TEST(GrammarSpecTest, ShortStringsBecomePatterns) {
  EXPECT_EQ(Schema(R"({"items":{"type":"string","minLength":1,"maxLength":64}})")->text,
            R"({"items":{"type":"string","pattern":"^.{1,64}$"}})");
  EXPECT_EQ(Schema(R"({"type":"string","maxLength":0})")->text,
            R"({"type":"string","pattern":"^.{0,0}$"})");
  for (const char* schema : {
           R"({"type":"string","maxLength":513})",
           R"({"type":"string","minLength":3})",
           R"({"type":"string","minLength":3,"maxLength":2})",
           R"({"type":"string","minLength":-1,"maxLength":2})",
           R"({"type":["string","null"],"maxLength":3})",
           R"({"enum":[{"type":"string","maxLength":3}]})",
       }) {
    EXPECT_EQ(Schema(schema)->text, schema);
  }
}

TEST(GrammarSpecTest, RequiredKeysBecomeProperties) {
  EXPECT_EQ(Schema(R"({"properties":{"a":{}},"required":["b","a","b"]})")->text,
            R"({"properties":{"a":{},"b":{}},"required":["b","a","b"]})");
  EXPECT_EQ(Schema(R"({"items":{"type":["object","null"],"required":["b"],
                       "additionalProperties":{"type":"string","maxLength":1}}})")
                ->text,
            R"({"items":{"type":["object","null"],"required":["b"],)"
            R"("additionalProperties":{"type":"string","pattern":"^.{0,1}$"},)"
            R"("properties":{"b":{"type":"string","pattern":"^.{0,1}$"}}}})");
  EXPECT_EQ(
      Schema(R"({"type":"object","required":["b"],"additionalProperties":true})")->text,
      R"({"type":"object","required":["b"],"additionalProperties":true,"properties":{"b":{}}})");
  EXPECT_EQ(
      Schema(R"({"type":"object","required":["b"],"unevaluatedProperties":{"type":"null"}})")->text,
      R"({"type":"object","required":["b"],"unevaluatedProperties":{"type":"null"},)"
      R"("properties":{"b":{"type":"null"}}})");
  EXPECT_EQ(Schema(R"({"type":"string","required":["b"]})")->text,
            R"({"type":"string","required":["b"]})");
}

TEST(GrammarSpecTest, RequiredKeysThatCannotComeAreRefusedByName) {
  const auto refusal = [](const std::string& schema) {
    return std::string(Schema(schema).status().message());
  };
  constexpr const char* kHas =
      "structured.json_schema: 'required' has 'b', which is not in 'properties'";
  EXPECT_EQ(refusal(R"({"properties":{},"required":["b"],"additionalProperties":false})"),
            StrCat(kHas, ", and no other keys are allowed"));
  EXPECT_EQ(refusal(R"({"properties":{},"required":["b"],"patternProperties":{"b":{}}})"),
            StrCat(kHas, "; that is not supported beside 'patternProperties' and 'propertyNames'"));
  EXPECT_EQ(refusal(R"({"properties":{},"required":"b"})"),
            "structured.json_schema: 'required' must be an array of strings");
  // 300 copies of 300 bytes are more than anybody may ask for.
  std::string keys = "\"b0\"";
  for (int i = 1; i < 300; ++i) StrAppend(&keys, ",\"b", i, "\"");
  v1::StructuredOutput in;
  in.set_json_schema(StrCat(R"({"type":"object","required":[)", keys,
                            R"(],"additionalProperties":{"const":")", std::string(300, 'x'),
                            R"("}})"));
  EXPECT_THAT(std::string(ReadStructured(in, 10'000).status().message()),
              HasSubstr("too many of these"));
}

// As pydantic writes a union with a discriminator.
TEST(GrammarSpecTest, DisjointBranchesOfOneOfAreThoseOfAnyOf) {
  constexpr const char* kPets =
      R"("$defs":{"Kind":{"enum":["dog","wolf"]},)"
      R"("Cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]},)"
      R"("Dog":{"type":"object","properties":{"kind":{"$ref":"#/$defs/Kind"}},"required":["kind"]}})";
  EXPECT_EQ(Schema(StrCat(R"({"items":{"discriminator":{"propertyName":"kind"},)"
                          R"("oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}]},)",
                          kPets, "}"))
                ->text,
            StrCat(R"({"items":{"discriminator":{"propertyName":"kind"},)"
                   R"("anyOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}]},)",
                   kPets, "}"));
  for (const char* branches : {
           R"([{"type":"integer"},{"type":"string","maxLength":900},{"type":["null","boolean"]}])",
           R"([{"const":1},{"enum":["1",null]},{"type":"array"}])",
           R"([{"const":"a"},{"const":"b"}])",
           R"([{"type":"object"}])",
       }) {
    EXPECT_EQ(Schema(StrCat(R"({"oneOf":)", branches, "}"))->text,
              StrCat(R"({"anyOf":)", branches, "}"));
  }
  for (const char* branches : {
           R"([{"type":"integer"},{"type":"number","minimum":3}])",
           R"([{"const":1},{"const":1.0}])",
           R"([{"const":0},{"const":-0.0}])",
           R"([{"const":1},{"type":"number"}])",
           R"([{"const":[1]},{"const":[1.0]}])",
           R"([{"enum":["a","b"]},{"enum":["b"]}])",
           R"([{"type":"null"},{}])",
           R"([{"type":"null"},true])",
           R"([{"type":"null"},{"$ref":"#/nowhere"}])",
           R"([{"type":"null"},{"$ref":"#/oneOf/1"}])",
           R"([{"type":["null","object"],"properties":{"k":{"const":1}},"required":["k"]},
               {"type":["null","object"],"properties":{"k":{"const":2}},"required":["k"]}])",
           R"([{"type":"object","properties":{"k":{"const":1}}},
               {"type":"object","properties":{"k":{"const":2}},"required":["k"]}])",
           R"([{"type":"object","properties":{"k":{"const":1}},"required":["k"]},
               {"type":"object","properties":{"j":{"const":2}},"required":["j"]}])",
       }) {
    EXPECT_EQ(Schema(StrCat(R"({"oneOf":)", branches, "}"))->text,
              StrCat(R"({"oneOf":)", branches, "}"));
  }
}

// The proof is given up instead of taking its time: the sandbox then refuses the schema.
TEST(GrammarSpecTest, ManyBranchesAreNotComparedForEver) {
  std::string branches = R"({"const":"0"})";
  for (int i = 1; i < 4000; ++i) StrAppend(&branches, R"(,{"const":")", i, R"("})");
  v1::StructuredOutput in;
  in.set_json_schema(StrCat(R"({"oneOf":[)", branches, "]}"));
  EXPECT_EQ(ReadStructured(in, 1 << 20)->text, in.json_schema());
}

TEST(GrammarSpecTest, DeepSchemasAreRefused) {
  std::string schema = "{}";
  for (int i = 0; i < 16; ++i) schema = StrCat(R"({"properties":{"a":)", schema, "}}");
  EXPECT_THAT(std::string(Schema(schema).status().message()), HasSubstr("deep"));
}

}  // namespace
}  // namespace flotilla
