#include "router/model_handle.h"

#include <algorithm>
#include <utility>

#include "common/base/sha256.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {

StatusOr<TextModel> LoadTextModel(std::string_view bytes, std::string_view sha256) {
  if (Sha256Hex(bytes) != sha256)
    return absl::DataLossError("the tokenizer file does not have the digest the replica named");
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  ASSIGN_OR_RETURN(const GgufFile gguf,
                   GgufFile::Parse({data, bytes.size()}, {.metadata_only = true}));
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, CreateTokenizer(gguf));
  size_t max_token_bytes = 0;
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer->vocab_size()); ++id)
    max_token_bytes = std::max(max_token_bytes, tokenizer->TokenBytes(id).size());
  return TextModel{std::move(tokenizer), max_token_bytes, ChatFormat::Create(gguf)};
}

}  // namespace flotilla
