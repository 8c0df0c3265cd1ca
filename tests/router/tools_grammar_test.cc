// The schema of a call that must be made (tools_fields.h), as the grammar engine takes it: each
// tool's references find what they found before it was one of several.
#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>

#include "router/api/tools_fields.h"
#include "router/base/json_reader.h"
#include "scheduler_proc/grammar/grammar_spec.h"
#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using testing::ExpectFollows;

class ToolsGrammarTest : public ::testing::Test {
 protected:
  // What "required" makes of tools with these parameters, named f, g, ….
  static json::value Schema(std::vector<std::string> parameters) {
    std::string list;
    char name = 'f';
    for (const std::string& each : parameters)
      StrAppend(&list, list.empty() ? "" : ",", R"({"type":"function","function":{"name":")",
                std::string(1, name++), R"(","parameters":)", each, "}}");
    json::value body;
    EXPECT_FALSE(
        ParseJson(StrCat(R"({"tool_choice":"required","tools":[)", list, "]}"), &body).has_value());
    ToolSet tools;
    EXPECT_FALSE(ReadTools(body.as_object(), &tools).has_value());
    CompletionRequest request;
    v1::ChatRequest conversation;
    EXPECT_FALSE(ApplyTools(std::move(tools), "", {}, &request, &conversation).has_value());
    json::value schema;
    ParseJson(request.params.structured().json_schema(), &schema);
    return schema;
  }

  StatusOr<std::shared_ptr<const Grammar>> Compile(std::vector<std::string> parameters) {
    ASSIGN_OR_RETURN(const std::string schema,
                     CheckJsonSchema(json::serialize(Schema(std::move(parameters))), "tools"));
    ASSIGN_OR_RETURN(const std::string compiled,
                     CompileToJson({GrammarKind::kJsonSchema, schema}, vocabulary_));
    return GrammarFromJson(compiled, vocabulary_);
  }
  static bool Takes(const Grammar& grammar, const std::string& text) {
    auto matcher = grammar.NewMatcher();
    if (!matcher.ok()) return false;
    for (const char c : text) {
      if (!(*matcher)->Accept(static_cast<unsigned char>(c)).ok()) return false;
    }
    return true;
  }

  const XGrammarVocabulary vocabulary_{testing::TestTokens()};
};

std::string Call(char name, std::string_view parameters) {
  return StrCat(R"([{"name": ")", std::string(1, name), R"(", "parameters": )",
                std::string(parameters), "}]");
}

TEST_F(ToolsGrammarTest, AReferenceToTheRootIsToTheToolsOwn) {
  const auto grammar = Compile({R"({"type":"object","properties":{"v":{"type":"integer"},
      "next":{"anyOf":[{"type":"null"},{"$ref":"#"}]}},"required":["v","next"]})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, Call('f', R"({"v": 1, "next": {"v": 2, "next": null}})"), true);
  EXPECT_FALSE(Takes(**grammar, R"([{"name": "f", "parameters": {"v": 1, "next": [)"));
}

TEST_F(ToolsGrammarTest, AReferenceToAPropertyIsFound) {
  const auto grammar = Compile(
      {R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"$ref":"#/properties/a"}},
           "required":["a","b"]})",
       R"({"type":"object","components":{"n":{"const":{"$ref":"#"}}},
           "properties":{"b":{"$ref":"#/components/n"}},"required":["b"]})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, Call('f', R"({"a": true, "b": false})"), true);
  EXPECT_FALSE(Takes(**grammar, R"([{"name": "f", "parameters": {"a": true, "b": n)"));
  EXPECT_TRUE(Takes(**grammar, R"([{"name": "g", "parameters": {"b": {"$ref":"#"})"));
}

TEST_F(ToolsGrammarTest, ToolsMayDefineOneNameOtherwise) {
  const auto grammar =
      Compile({R"({"type":"object","properties":{"x":{"$ref":"#/$defs/Item"}},"required":["x"],
           "$defs":{"Item":{"type":"array","items":{"$ref":"#/$defs/Leaf"},"maxItems":2},
                    "Leaf":{"type":"null"}}})",
               R"({"$ref":"#/$defs/Item","$defs":{"Item":{"type":"object",
           "properties":{"x":{"type":"integer"}},"required":["x"]}}})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, Call('f', R"({"x": [null, null]})"), true);
  EXPECT_FALSE(Takes(**grammar, R"([{"name": "f", "parameters": {"x": 1)"));
  ExpectFollows(**grammar, Call('g', R"({"x": 12})"), true);
  EXPECT_FALSE(Takes(**grammar, R"([{"name": "g", "parameters": {"x": n)"));
}

// Unions stay provably disjoint, so that oneOf is still taken.
TEST_F(ToolsGrammarTest, UnionsOfDefinitionsAreTaken) {
  const auto grammar = Compile({R"({"type":"object","properties":{"pet":{"oneOf":[
      {"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}]}},"required":["pet"],"$defs":{
      "Cat":{"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]},
      "Dog":{"type":"object","properties":{"kind":{"const":"dog"}},"required":["kind"]}}})"});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, Call('f', R"({"pet": {"kind": "dog"}})"), true);
}

TEST_F(ToolsGrammarTest, NamesAndValuesAreNoReferences) {
  const auto schema = Schema({R"({"type":"object","properties":{
      "$ref":{"type":"string"},"enum":{"$ref":"#/$defs/a"},"default":{"$ref":"#anchor"}},
      "$defs":{"a":{"enum":["#",{"$ref":"#"}]}},
      "default":{"$ref":"#"},"examples":[{"$ref":"#/x"}],"description":"#"})"});
  const json::value& f = schema.at("$defs").at("f");
  EXPECT_EQ(json::serialize(f.at("properties")),
            R"({"$ref":{"type":"string"},"enum":{"$ref":"#/$defs/f/$defs/a"},)"
            R"("default":{"$ref":"#anchor"}})");
  EXPECT_EQ(json::serialize(f.at("$defs")), R"({"a":{"enum":["#",{"$ref":"#"}]}})");
  EXPECT_EQ(json::serialize(f.at("default")), R"({"$ref":"#"})");
  EXPECT_EQ(json::serialize(f.at("examples")), R"([{"$ref":"#/x"}])");
  EXPECT_EQ(schema.at("items").at("anyOf").at(0).at("properties").at("parameters").at("$ref"),
            "#/$defs/f");
}

}  // namespace
}  // namespace flotilla
