// A served model as the router knows it: what a replica said of it, and its tokenizer.
//
// The tokenizer comes from the replica itself: a file ("tokenizer") as common/text/model_text.h
// makes it, fetched once by digest and shared by all replicas that name the same digest. Threads:
// immutable after construction, any thread. Errors: LoadTextModel says what is wrong with the file
// (digest, format, vocabulary).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/text/chat_format.h"
#include "common/text/sampling_defaults.h"
#include "common/text/tokenizer.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

inline constexpr std::string_view kTokenizerFile = "tokenizer";

struct ModelHandle {
  std::string name;         // what clients call it
  std::string digest;       // of the weights
  std::string fingerprint;  // of weights and arithmetic
  std::string tokenizer_sha256;
  uint32_t max_model_len = 0;  // tokens
  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;              // of embeddings
  uint64_t max_grammar_bytes = 1 << 20;  // of a structured output's text, at most
  bool structural_tags = false;          // the replica takes them
  int64_t created = 0;                   // Unix seconds
  std::shared_ptr<const Tokenizer> tokenizer;
  // A longer text can't fit the context, however it is cut.
  size_t max_prompt_bytes = SIZE_MAX;
  StatusOr<ChatFormat> chat_format = absl::NotFoundError("it has no chat template");
  SamplingDefaults sampling;  // of requests that say nothing of it
};

// What a tokenizer file holds.
struct TextModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  size_t max_token_bytes = 0;        // of the longest token
  StatusOr<ChatFormat> chat_format;  // an error is no error of the file: it can't chat, that is all
  SamplingDefaults sampling;
};

// What a replica says of its model, and what its tokenizer file holds.
ModelHandle ModelOf(const v1::GetModelInfoResponse& info, const TextModel& text);

// One handle for all replicas that say the same of their model. Threads: one at a time.
class ModelHandles {
 public:
  // The handle that has it, else a new one. (`created` may differ: the first one's stays.)
  std::shared_ptr<const ModelHandle> Share(ModelHandle model);

 private:
  std::vector<std::weak_ptr<const ModelHandle>> handles_;
};

// Checks the digest, parses and builds: some 100 ms, so not on the io thread.
StatusOr<TextModel> LoadTextModel(std::string_view bytes, std::string_view sha256);

}  // namespace flotilla
