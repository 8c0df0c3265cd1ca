#include "router/model_handle.h"

#include <algorithm>
#include <utility>

#include "common/base/sha256.h"
#include "common/text/model_text.h"

namespace flotilla {

StatusOr<TextModel> LoadTextModel(std::string_view bytes, std::string_view sha256) {
  if (Sha256Hex(bytes) != sha256)
    return absl::DataLossError("the tokenizer file does not have the digest the replica named");
  ASSIGN_OR_RETURN(ModelText text, ParseModelText(bytes));
  const Tokenizer& tokenizer = *text.tokenizer;
  size_t max_token_bytes = 0;
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.vocab_size()); ++id)
    max_token_bytes = std::max(max_token_bytes, tokenizer.TokenBytes(id).size());
  return TextModel{std::move(text.tokenizer), max_token_bytes, std::move(text.chat_format)};
}

}  // namespace flotilla
