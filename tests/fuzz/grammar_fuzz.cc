// libFuzzer: what a client asks of its output, and the frames between the scheduler and its compile
// sandbox. What is refused says which field; what is taken has one spelling and goes through the
// sandbox's frames unchanged.
//
// The first byte says what the rest is: a schema, regular expression, EBNF, choices (pieces of
// fuzz_input.h), a structural tag, a vocabulary, a request or a reply.
#include <string>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "scheduler_proc/grammar/compile_frames.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

constexpr size_t kMaxBytes = 2000;
constexpr size_t kMostAddedBytes = 64 << 10;

void CheckStructured(const v1::StructuredOutput& in) {
  const StatusOr<GrammarSpec> spec = ReadStructured(in, kMaxBytes);
  if (!spec.ok()) {
    CHECK(absl::StartsWith(spec.status().message(), "structured"));
    CHECK(absl::StrContains(spec.status().message(), ": "));
    return;
  }
  CHECK(spec->kind == GrammarKind::kJsonObject || !spec->text.empty());
  // Choices are quoted, short strings of a schema become patterns, required keys get schemas.
  CHECK(spec->text.size() <= 10 * kMaxBytes + kMostAddedBytes);
  const CompileRequest request = {*spec, 7, 8, 9};
  const StatusOr<CompileRequest> read = ParseCompileRequest(BuildCompileRequest(request));
  CHECK_OK(read.status());
  CHECK(read->spec == *spec && read->time_ms == 7 && read->memory_bytes == 8);
}

v1::StructuredOutput StructuredOf(uint8_t kind, fuzz::FuzzInput* input) {
  v1::StructuredOutput out;
  if (kind == 3) {
    out.mutable_choice();
    while (!input->empty())
      out.mutable_choice()->add_options(std::string(input->GetPiece().view()));
    return out;
  }
  std::string text(input->Rest().view());
  if (kind == 0)
    out.set_json_schema(std::move(text));
  else if (kind == 1)
    out.set_regex(std::move(text));
  else if (kind == 2)
    out.set_ebnf(std::move(text));
  else if (kind == 6)
    out.set_structural_tag(std::move(text));
  else
    out.set_json_object(!text.empty());
  return out;
}

void CheckFrames(std::string_view frame) {
  const StatusOr<VocabularyTokens> tokens = ParseVocabulary(frame);
  if (tokens.ok()) {
    CHECK(tokens->tokens.size() <= tokens->vocab_size);
    CHECK(BuildVocabulary(*tokens) == frame);
  }
  const StatusOr<CompileRequest> request = ParseCompileRequest(frame);
  if (request.ok()) CHECK(BuildCompileRequest(*request) == frame);
  const StatusOr<CompileReply> reply = ParseCompileReply(frame);
  if (!reply.ok()) return;
  CHECK(reply->status.ok() || reply->compiled.empty());
  const StatusOr<CompileReply> again = ParseCompileReply(BuildCompileReply(*reply));
  CHECK_OK(again.status());
  CHECK(again->status.code() == reply->status.code());
  CHECK(again->status.message() == reply->status.message());
  CHECK(again->compiled == reply->compiled);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  const auto kind = static_cast<uint8_t>(input.Get<uint8_t>() % 7);
  if (kind == 5) {
    CheckFrames(input.Rest().view());
  } else {
    CheckStructured(StructuredOf(kind, &input));
  }
  return 0;
}
