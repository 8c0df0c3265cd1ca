#include "scheduler_proc/grammar/compile_frames.h"

#include "common/base/wire.h"

namespace flotilla {
namespace {

Status Malformed(std::string_view frame) {
  return absl::InvalidArgumentError(StrCat(frame, ": malformed"));
}

}  // namespace

std::string BuildVocabulary(const VocabularyTokens& tokens) {
  std::string frame;
  WireWriter out(&frame);
  out.Put(tokens.vocab_size);
  out.PutSpan(std::span<const int32_t>(tokens.eos_ids));
  out.Put(static_cast<uint32_t>(tokens.tokens.size()));
  for (const std::string& token : tokens.tokens) out.PutBytes(token);
  return frame;
}

StatusOr<VocabularyTokens> ParseVocabulary(std::string_view frame) {
  WireReader in(frame);
  VocabularyTokens tokens;
  tokens.vocab_size = in.Get<uint32_t>();
  tokens.eos_ids = in.GetSpan<int32_t>();
  const uint32_t count = in.Get<uint32_t>();
  if (!in.ok() || count > tokens.vocab_size || count > in.remaining())
    return Malformed("vocabulary");
  for (uint32_t i = 0; i < count; ++i) tokens.tokens.emplace_back(in.GetBytes());
  if (!in.AtEnd()) return Malformed("vocabulary");
  return tokens;
}

std::string BuildCompileRequest(const CompileRequest& request) {
  std::string frame;
  WireWriter out(&frame);
  out.Put(static_cast<uint32_t>(request.spec.kind));
  out.PutBytes(request.spec.text);
  out.Put(request.time_ms);
  out.Put(request.memory_bytes);
  out.Put(request.compiled_bytes);
  return frame;
}

StatusOr<CompileRequest> ParseCompileRequest(std::string_view frame) {
  WireReader in(frame);
  CompileRequest request;
  const uint32_t kind = in.Get<uint32_t>();
  request.spec.text = in.GetBytes();
  request.time_ms = in.Get<uint32_t>();
  request.memory_bytes = in.Get<uint64_t>();
  request.compiled_bytes = in.Get<uint64_t>();
  if (!in.AtEnd() || kind < static_cast<uint32_t>(GrammarKind::kJsonSchema) ||
      kind > static_cast<uint32_t>(GrammarKind::kStructuralTag))
    return Malformed("compile request");
  request.spec.kind = static_cast<GrammarKind>(kind);
  return request;
}

std::string BuildCompileReply(const CompileReply& reply) {
  std::string frame;
  WireWriter out(&frame);
  out.Put(static_cast<uint32_t>(reply.status.code()));
  out.PutBytes(reply.status.ok() ? std::string_view(reply.compiled)
                                 : std::string_view(reply.status.message().data(),
                                                    reply.status.message().size()));
  return frame;
}

StatusOr<CompileReply> ParseCompileReply(std::string_view frame) {
  WireReader in(frame);
  CompileReply reply;
  const uint32_t code = in.Get<uint32_t>();
  const std::string_view bytes = in.GetBytes();
  if (!in.AtEnd()) return Malformed("compile reply");
  if (code == 0) {
    reply.compiled = bytes;
  } else {
    reply.status = Status(static_cast<absl::StatusCode>(code), StrCat(bytes));
  }
  return reply;
}

}  // namespace flotilla
