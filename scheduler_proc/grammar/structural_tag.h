// Structural tags: xgrammar's language for an output that is free text here and a schema there, as
// vLLM and SGLang take it from clients, and as the router writes it for thoughts and calls of tools
// that stand beside an answer (router/api/output_format.h).
//
// Taken are the formats of text: const_string, any_text, json_schema, regex, grammar, sequence, or,
// optional, plus, star, repeat, tag, triggered_tags, tags_with_separator. Those that speak of
// tokens, and the ways in which some models write XML, are refused, as is what is not known: a wish
// that is passed over in silence is worse than none. Schemas inside are treated as a schema alone
// is (grammar_spec.h).
//
// Threads: pure functions. Errors: InvalidArgument; the message begins with `field`, then with the
// tag that has the fault. Source: xgrammar's documentation of structural tags (0.2.8).
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace flotilla {

// The structural tag as xgrammar is to read it.
StatusOr<std::string> CheckStructuralTag(std::string_view text, std::string_view field);

}  // namespace flotilla
