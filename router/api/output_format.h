// An output of several parts, as one structural tag: a thought, then an answer of the client's
// schema or grammar, or calls of tools.
//
// Each replaces what a request asks of its output by a structural tag that has it as a part, so
// that the scheduler knows of one grammar, and a matcher follows thoughts and texts as it follows
// JSON. What can't be part of one, since it is wrong, stays: the replica says what is wrong.
// Threads: pure functions. Errors: none. Source: xgrammar's structural tags; the texts of calls are
// those of the models' templates (answer/tool_call_parser.h).
#pragma once

#include <optional>

#include "flotilla/v1/inference.pb.h"
#include "router/answer/reasoning_parser.h"
#include "router/answer/tool_call_parser.h"
#include "router/api/tools_fields.h"

namespace flotilla {

// The model may think before it writes what is asked for (with a budget: whatever it likes); must,
// if its prompt has begun a thought. False, and nothing done: there is no thought to be had, or
// nothing asked for. `budget`: tokens of a thought, at most; then it has to end.
bool LetThinkFirst(ReasoningStart start, std::optional<int32_t> budget,
                   v1::StructuredOutput* structured);

// For a model that writes calls this way, and may choose: text or calls, or, if something is asked
// of the output, that or calls. Arguments of tools that are strict are what their schemas accept,
// others any object.
void HoldCalls(const ToolSet& tools, ToolSyntax syntax, v1::StructuredOutput* structured);

}  // namespace flotilla
