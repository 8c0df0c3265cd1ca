#include "router/api/structured_fields.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace flotilla {
namespace {

CompletionRequest Read(const std::string& body) {
  CompletionRequest request;
  const auto error = ReadStructuredOutput(boost::json::parse(body).as_object(), &request);
  EXPECT_FALSE(error.has_value()) << body << (error.has_value() ? error->message : "");
  return request;
}

TEST(StructuredFieldsTest, EachFormAndItsName) {
  struct Case {
    const char* body;
    const char* field;
    const char* expected;  // v1::StructuredOutput
  };
  const Case cases[] = {
      {R"({"response_format":{"type":"json_object"}})", "response_format", "json_object: true"},
      {R"({"response_format":{"type":"json_object","schema":{"type":"null"}}})",
       "response_format.schema", R"(json_schema: "{\"type\":\"null\"}")"},
      {R"({"response_format":{"type":"json_schema","json_schema":
           {"name":"n","strict":true,"schema":{"type":"string","maxLength":3}}}})",
       "response_format.json_schema.schema",
       R"(json_schema: "{\"type\":\"string\",\"maxLength\":3}")"},
      {R"({"structured_outputs":{"json":{"type":"null"}}})", "structured_outputs.json",
       R"(json_schema: "{\"type\":\"null\"}")"},
      {R"({"structured_outputs":{"json":"{}"}})", "structured_outputs.json",
       R"(json_schema: "{}")"},
      {R"({"structured_outputs":{"regex":"a+"}})", "structured_outputs.regex", R"(regex: "a+")"},
      {R"({"structured_outputs":{"grammar":"root ::= x"}})", "structured_outputs.grammar",
       R"(ebnf: "root ::= x")"},
      {R"({"structured_outputs":{"choice":["a","b"]}})", "structured_outputs.choice",
       R"(choice { options: "a" options: "b" })"},
      {R"({"structured_outputs":{"json_object":true}})", "structured_outputs.json_object",
       "json_object: true"},
      {R"({"guided_json":true})", "guided_json", R"(json_schema: "true")"},
      {R"({"guided_regex":"b"})", "guided_regex", R"(regex: "b")"},
      {R"({"guided_choice":["c"]})", "guided_choice", R"(choice { options: "c" })"},
      {R"({"guided_grammar":"root ::= y"})", "guided_grammar", R"(ebnf: "root ::= y")"},
      {R"({"json_schema":"{}"})", "json_schema", R"(json_schema: "{}")"},
      {R"({"regex":"b"})", "regex", R"(regex: "b")"},
      {R"({"ebnf":"root ::= y"})", "ebnf", R"(ebnf: "root ::= y")"},
      {R"({"grammar":"root ::= y"})", "grammar", R"(ebnf: "root ::= y")"},
      {R"({"structural_tag":"{}"})", "structural_tag", R"(structural_tag: "{}")"},
      {R"({"structural_tag":"{\"structures\":[],\"triggers\":[]}"})", "structural_tag",
       R"(structural_tag: "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[],\"tags\":[]}}")"},
      {R"({"structured_outputs":{"structural_tag":"{\"format\":7}"}})",
       "structured_outputs.structural_tag", R"(structural_tag: "{\"format\":7}")"},
      {R"({"response_format":{"type":"structural_tag","format":{"type":"any_text"}}})",
       "response_format",
       R"(structural_tag: "{\"type\":\"structural_tag\",\"format\":{\"type\":\"any_text\"}}")"},
      {R"({"response_format":{"type":"structural_tag","triggers":["<f="],
           "structures":[{"begin":"<f=","schema":{"type":"null"},"end":">"}]}})",
       "response_format",
       R"(structural_tag: "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<f=\"],)"
       R"(\"tags\":[{\"type\":\"tag\",\"begin\":\"<f=\",\"content\":{\"type\":\"json_schema\",)"
       R"(\"json_schema\":{\"type\":\"null\"}},\"end\":\">\"}]}}")"},
  };
  for (const Case& c : cases) {
    const CompletionRequest request = Read(c.body);
    EXPECT_EQ(request.structured_field, c.field);
    EXPECT_EQ(request.params.structured().ShortDebugString(), c.expected) << c.body;
  }
}

TEST(StructuredFieldsTest, KeysKeepTheirOrder) {
  const CompletionRequest request =
      Read(R"({"guided_json":{"properties":{"z":{},"a":{},"m":{}}}})");
  EXPECT_EQ(request.params.structured().json_schema(), R"({"properties":{"z":{},"a":{},"m":{}}})");
}

TEST(StructuredFieldsTest, NothingAskedForIsNothingSet) {
  for (const char* body :
       {"{}", R"({"response_format":null,"guided_json":null})",
        R"({"response_format":{"type":"text"}})",
        R"({"structured_outputs":{"json_object":false,"regex":null,"whitespace_pattern":null}})",
        R"({"regex":null,"ebnf":null,"json_schema":null,"structural_tag":""})"}) {
    const CompletionRequest request = Read(body);
    EXPECT_FALSE(request.params.has_structured()) << body;
    EXPECT_TRUE(request.structured_field.empty());
  }
}

TEST(StructuredFieldsTest, KeysThatAreNoFormsAreRefusedByName) {
  struct Case {
    const char* outputs;
    const char* field;
    const char* message;
  };
  const Case cases[] = {
      {"{}", "structured_outputs",
       "'structured_outputs' must be an object with 'json', 'regex', 'choice', 'grammar', "
       "'json_object' or 'structural_tag'."},
      {R"({"josn":{"type":"null"}})", "structured_outputs.josn",
       "'structured_outputs.josn' is not known: 'structured_outputs' takes 'json', 'regex', "
       "'choice', 'grammar', 'json_object' or 'structural_tag'."},
      {R"({"json":{},"structural_tag":"{}"})", "structured_outputs.structural_tag",
       "'structured_outputs.structural_tag' can't be set beside 'structured_outputs.json'."},
      {R"({"structural_tag":7})", "structured_outputs.structural_tag",
       "'structured_outputs.structural_tag' must be a structural tag, an object with a 'format'."},
      {R"({"structural_tag":{"structures":[{"begin":"x"}]}})",
       "structured_outputs.structural_tag.structures",
       "'structured_outputs.structural_tag.structures' must be an array of objects with 'begin', "
       "'schema' and 'end', beside 'triggers'."},
  };
  for (const Case& c : cases) {
    CompletionRequest request;
    const boost::json::object body{{"structured_outputs", boost::json::parse(c.outputs)}};
    const auto error = ReadStructuredOutput(body, &request);
    EXPECT_EQ(error.value_or(ApiError()).param, c.field) << c.outputs;
    EXPECT_EQ(error.value_or(ApiError()).message, c.message) << c.outputs;
  }
}

TEST(StructuredFieldsTest, ReplicasSpeakOfTheClientsField) {
  ApiError error = InvalidField("structured.regex", "structured.regex: too complex: why");
  NameAsClient("guided_regex", &error);
  EXPECT_EQ(error.param, "guided_regex");
  EXPECT_EQ(error.message, "'guided_regex': too complex: why.");
  ApiError other = InvalidField("stop", "stop: too long");
  NameAsClient("guided_regex", &other);
  EXPECT_EQ(other.param, "stop");
  EXPECT_EQ(other.message, "stop: too long");
}

}  // namespace
}  // namespace flotilla
