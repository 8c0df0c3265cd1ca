// A field of prompts as OpenAI writes them: a string, an array of strings, an array of token ids or
// an array of arrays of token ids. For completions' `prompt` and embeddings' `input`.
//
// Threads: pure functions. Errors: the reader's first, naming the field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "router/base/json_reader.h"

namespace flotilla {

struct CompletionPrompt {
  std::string text;  // as the client wrote it, or decoded from its ids if echo is asked for
  std::vector<int32_t> ids;
};

// Either texts, which are tokenised later, or ids.
struct PromptField {
  std::vector<CompletionPrompt> prompts;
  bool are_texts = false;
};

PromptField ReadPromptField(const char* name, size_t max_prompts, FieldReader* reader);

}  // namespace flotilla
