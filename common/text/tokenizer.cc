#include "common/text/tokenizer.h"

#include "common/base/utf8.h"
#include "common/text/bpe_tokenizer.h"
#include "common/text/incremental_detokenizer.h"

namespace flotilla {

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (!skip_special || !IsSpecial(id)) bytes.append(TokenBytes(id));
  }
  std::string text;
  text.reserve(bytes.size());
  if (DecodeUtf8Replacing(bytes, &text) < bytes.size()) text.append(kReplacementCharacter);
  return text;
}

StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(const std::string_view model, gguf.GetString("tokenizer.ggml.model"));
  if (model == "gpt2") return CreateBpeTokenizer(gguf);
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.model is '",
                                                 std::string(model.substr(0, 64)),
                                                 "', which is not supported; known: gpt2"));
}

}  // namespace flotilla
