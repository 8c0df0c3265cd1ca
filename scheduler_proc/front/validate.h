// Checks every field of a GenerateRequest against the ranges of inference.proto, and turns it into
// what the core and the output side take. The same for requests of routers and of direct clients:
// the scheduler trusts neither.
//
// Errors: the message begins with the field's name. InvalidArgument: out of range; NotFound:
// another model; Unimplemented: a feature of a later part; Internal: never. Threads: any.
#pragma once

#include <optional>
#include <string>

#include "common/rpc/choices.h"
#include "common/text/tokenizer.h"
#include "flotilla/v1/engine.pb.h"
#include "scheduler_proc/exchange/inbox.h"
#include "scheduler_proc/grammar/grammar_spec.h"

namespace flotilla {

struct RequestLimits {
  std::string model_name;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // tokens of prompt and output together
  size_t max_grammar_bytes = 64 << 10;
  size_t max_prompt_bytes = SIZE_MAX;  // of a text, before it is tokenised
};

// A longer one is certainly more than the context.
Status CheckPromptBytes(const std::string& field, const std::string& text,
                        const RequestLimits& limits);

struct CheckedRequest {
  std::string request_id;  // never empty
  ReqSpec spec;            // without id, arrival and grammar
  std::optional<GrammarSpec> grammar;
  StreamOptions options;
  ChoiceOptions choices;  // spec and options are those of candidate 0
  bool echo = false;
  bool return_token_ids = true;
  int64_t deadline_ms = 0;  // from arrival; 0: none
};

// `resume` as in Submit. `tokenizer` may be null: then the prompt must be token ids.
StatusOr<CheckedRequest> CheckRequest(
    const v1::GenerateRequest& request,
    const google::protobuf::RepeatedPtrField<v1::ResumeChoice>& resume, const RequestLimits& limits,
    const Tokenizer* tokenizer);

// The prompt's embedding instead of an answer: sampling, stopping, output and structured of
// `request` must be absent.
StatusOr<CheckedRequest> CheckEmbed(const v1::GenerateRequest& request,
                                    const v1::EmbedOptions& embed, const RequestLimits& limits,
                                    const Tokenizer* tokenizer);

// The request of candidate `index` alone.
CheckedRequest ForCandidate(const CheckedRequest& checked, size_t index);

// "model: …" unless `model` is empty or the one that is served.
Status CheckModel(const std::string& model, const std::string& served);
// "<field>[i]: …" for an id out of the vocabulary.
Status CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, const char* field,
                     uint32_t vocab_size);

}  // namespace flotilla
