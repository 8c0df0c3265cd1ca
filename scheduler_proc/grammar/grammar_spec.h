// What a client asks of its output, checked before anything expensive looks at it.
//
// ReadStructured refuses what is too long, what is no JSON, and what xgrammar would pass over in
// silence (uniqueItems, not, if …): an answer that ignores a wish is worse than none. What a
// grammar costs is not judged here: the compile sandbox and the matcher's step budget see to that.
//
// Threads: pure functions. Errors: InvalidArgument; the message begins with the field of
// StructuredOutput.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "flotilla/v1/inference.pb.h"

namespace flotilla {

enum class GrammarKind : uint32_t {
  kJsonSchema = 1,
  kJsonObject = 2,  // any JSON object; no text
  kRegex = 3,
  kEbnf = 4,
  kChoice = 5,  // as EBNF
  kStructuralTag = 6,
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;

  bool operator==(const GrammarSpec&) const = default;
};

// "structured.json_schema", for messages.
const char* GrammarField(GrammarKind kind);

inline constexpr int kMaxGrammarChoices = 1024;
// Blanks in a row between two parts of JSON. Without a bound a small model may go on with them for
// ever; a bound that lets indents through (16) makes what is compiled three times as large.
inline constexpr int kMaxJsonBlanks = 2;

// in.kind is set. max_bytes: of the text.
StatusOr<GrammarSpec> ReadStructured(const v1::StructuredOutput& in, size_t max_bytes);

// "{1,99999999999}" in a regular expression or a grammar: xgrammar would count wrongly.
bool HasHugeRepetition(std::string_view text);

// Refuses keywords of JSON Schema that would have no effect. Returns the schema, written in another
// way where xgrammar takes that better (schema_rewrites.h). `field` begins the messages.
StatusOr<std::string> CheckJsonSchema(std::string_view schema, std::string_view field);

}  // namespace flotilla
