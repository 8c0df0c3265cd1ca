// /v1/completions: deltas of a replica as OpenAI's JSON, streamed or whole.
//
// A ChoiceFormatter turns one choice's deltas into pieces; pieces are written as a stream's chunk
// or joined into the one answer. A chat's text is told apart on the way (choice_reader.h). With
// echo the prompt's text and logprobs come before the first token, of each choice, so a piece is
// held back until they are complete.
//
// One token's text is its bytes with what is not valid UTF-8 as U+FFFD, as in vLLM. text_offset
// counts code points of the choice's text before the token; for a token that starts or continues a
// split character it is where that character will stand.
// Threads: one at a time. Source: OpenAI's API reference; vLLM's prompt_logprobs form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text/incremental_detokenizer.h"
#include "flotilla/v1/engine.pb.h"
#include "router/answer/choice_reader.h"
#include "router/api/completions_request.h"

namespace flotilla {

// Arrays are JSON without their brackets. Pieces of a choice are joined by appending.
struct ChoicePiece {
  std::string text;
  std::string reasoning;             // of chat
  std::vector<ToolCallPiece> calls;  // of chat
  std::string tokens, token_logprobs, top_logprobs, text_offsets;
  std::string content_logprobs;  // of chat
  std::string token_ids;
  std::string prompt_token_ids;
  std::string prompt_logprobs;
  std::string finish_reason;  // empty: not finished
  std::string stop_reason;    // JSON, empty: null
  std::string usage;          // so far, of this choice; JSON, empty: null

  void Append(const ChoicePiece& next);
  bool empty() const;
  size_t bytes() const;  // of all strings
};

// Counts the code points that come before each token.
class TextOffsets {
 public:
  explicit TextOffsets(IncrementalDetokenizer detokenizer) : detokenizer_(std::move(detokenizer)) {}
  size_t Next(TokenId id);

 private:
  IncrementalDetokenizer detokenizer_;
  size_t chars_ = 0;
};

class ChoiceFormatter {
 public:
  // `request` must outlive the formatter.
  ChoiceFormatter(const CompletionRequest& request, size_t prompt_index);

  // What the client gets of `delta`. Empty while the prompt part is incomplete.
  ChoicePiece OnDelta(const v1::Delta& delta);

 private:
  void TakePromptLogprobs(const v1::Delta& delta);
  void AddPromptPart(ChoicePiece* piece);
  void AddEchoedToken(size_t position, ChoicePiece* piece);
  void AddChoice(const v1::ChoiceDelta& choice, ChoicePiece* piece);
  void AddLogprob(const v1::TokenLogprobs& entry, TextOffsets* offsets, ChoicePiece* piece);
  void AddText(const v1::ChoiceDelta& choice, ChoicePiece* piece);
  void AddUsage(const v1::Delta& delta, ChoicePiece* piece);
  void AddFinish(const v1::ChoiceDelta& choice, ChoicePiece* piece) const;
  void AppendTokenText(TokenId id, std::string* out) const;
  void AppendTop(const v1::TokenLogprobs& entry, std::string* out) const;
  void AppendPromptEntry(const v1::TokenLogprobs& entry, std::string* out) const;

  const CompletionRequest& request_;
  const CompletionPrompt& prompt_;
  const Tokenizer& tokenizer_;
  TextOffsets prompt_offsets_;
  TextOffsets output_offsets_;
  ChoiceReader reader_;
  size_t output_start_ = 0;  // code points of echoed text
  int num_tokens_ = 0;       // of output
  std::vector<v1::TokenLogprobs> prompt_logprobs_;
  bool prompt_part_done_ = false;
};

// The constant fields of an answer.
struct CompletionEnvelope {
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  std::string system_fingerprint;
};

// {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":… without the closing brace.
void AppendEnvelope(const CompletionEnvelope& envelope, const char* object, std::string* out);
// What stands behind the choices.
struct AnswerEnd {
  v1::Usage usage;
  std::string timing;  // JSON; empty: not asked for
};
// ,"usage":{…} and ,"timing":{…}
void AppendEnd(const AnswerEnd& end, std::string* out);
// ,"usage":… of a piece, if usage was asked for
void AppendPieceUsage(const CompletionRequest& request, const ChoicePiece& piece, std::string* out);
// ,"usage":{…}
void AppendUsage(const v1::Usage& usage, std::string* out);

// Writes an answer in the form of its API. One an answer; calls come in order.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // A stream: what comes first, a piece of a choice, the end, and the end of one that failed.
  virtual std::string Begin() { return ""; }
  virtual std::string Piece(size_t index, const ChoicePiece& piece) = 0;
  virtual std::string End(const AnswerEnd& end) = 0;
  virtual std::string Failure(const ApiError& error) {
    return StrCat("data: ", ErrorJson(error), "\n\n");
  }
  // The whole answer at once.
  virtual std::string Whole(const std::vector<ChoicePiece>& choices, const AnswerEnd& end) = 0;
};

// `envelope` and `request` must outlive the writer.
std::unique_ptr<AnswerWriter> MakeCompletionWriter(const CompletionEnvelope& envelope,
                                                   const CompletionRequest& request);

std::string CompletionJson(const CompletionEnvelope& envelope, const CompletionRequest& request,
                           const std::vector<ChoicePiece>& choices, const AnswerEnd& end);
// "data: {…}\n\n"
std::string CompletionChunk(const CompletionEnvelope& envelope, const CompletionRequest& request,
                            size_t index, const ChoicePiece& piece);
// The end of a stream of OpenAI's: a chunk with usage or timing, if asked for, then [DONE].
std::string EndChunks(const CompletionEnvelope& envelope, const CompletionRequest& request,
                      const AnswerEnd& end);

}  // namespace flotilla
