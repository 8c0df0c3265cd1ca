#include "common/text/tokenizer.h"

#include "common/base/utf8.h"
#include "common/text/incremental_detokenizer.h"

namespace flotilla {

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string text = DecodeRest(ids, skip_special);
  if (strips_leading_space() && !text.empty() && text[0] == ' ') text.erase(0, 1);
  return text;
}

std::string Tokenizer::DecodeRest(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (!skip_special || !IsSpecial(id)) bytes.append(TokenBytes(id));
  }
  std::string text;
  text.reserve(bytes.size());
  if (DecodeUtf8Replacing(bytes, &text) < bytes.size()) text.append(kReplacementCharacter);
  return text;
}

}  // namespace flotilla
