// The tools of a conversation: OpenAI's tools, tool_choice and parallel_tool_calls, and what they
// make of a request.
//
// A choice that the model must make (required, a named function) is a grammar: the output is then
// the arguments of the one function, or a list of calls, that the functions' schemas accept; what
// else is asked of the output has no meaning then. A model that may choose is shown the tools by
// its chat template, and its output is searched for calls; a grammar holds it to them if a tool is
// strict, or an answer that is no call has to have a form (output_format.h). Other APIs fill a
// ToolSet from fields of their own.
// Threads: pure functions. Errors: ApiError naming the field. Source: OpenAI's API reference.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "router/answer/answer_parser.h"
#include "router/api/completions_request.h"

namespace flotilla {

inline constexpr size_t kMaxTools = 128;
// OpenAI allows 64, Anthropic 128, which names of MCP's servers need.
inline constexpr size_t kMaxToolNameBytes = 128;

struct ToolSet {
  enum class Choice { kAuto, kNone, kRequired, kNamed };
  struct Tool {
    std::string name;
    std::string field;               // of the schema, in the client's words
    boost::json::object parameters;  // a JSON schema
    bool strict = false;             // arguments are held to it, whoever chooses the call
  };
  std::vector<Tool> tools;
  boost::json::array shown;  // as templates see them
  Choice choice = Choice::kAuto;
  std::string named;  // with kNamed; one of tools
  bool parallel = true;
};

// The body's `tools`: `read_one` takes each entry, an object; `field`: its own.
using ReadOneTool = std::optional<ApiError> (*)(const boost::json::object& tool,
                                                const std::string& field, ToolSet* out);
std::optional<ApiError> ReadToolList(const boost::json::object& body, ReadOneTool read_one,
                                     ToolSet* out);
// One function's description: {"name", "description", "parameters", "strict"}. `field`: its own.
std::optional<ApiError> AddFunction(const boost::json::object& function, const std::string& field,
                                    ToolSet* out);
// Sets `named` if there is such a tool.
std::optional<ApiError> NameTool(std::string_view name, const std::string& field, ToolSet* out);

// A schema of arguments that says so: they are an object.
boost::json::object AsObjectSchema(boost::json::object schema);

// What templates see of a tool whose fields are not OpenAI's chat's: its name, its description, and
// the schema in its field `schema`.
boost::json::value ShownTool(const boost::json::object& tool, const char* schema);

// Where a named function's name is: in the object "function", or beside the type.
enum class ToolChoiceForm { kNested, kFlat };
std::optional<ApiError> ReadToolChoice(const boost::json::value& value, ToolChoiceForm form,
                                       ToolSet* out);

// OpenAI's chat fields.
std::optional<ApiError> ReadTools(const boost::json::object& body, ToolSet* out);

// Puts the tools where they have an effect: in the conversation, as a grammar, or into how the
// output is read. `chat_template`: the model's.
std::optional<ApiError> ApplyTools(ToolSet tools, std::string_view chat_template,
                                   const ParserChoice& parsers, CompletionRequest* request,
                                   v1::ChatRequest* conversation);

}  // namespace flotilla
