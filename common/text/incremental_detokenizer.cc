#include "common/text/incremental_detokenizer.h"

#include "common/base/utf8.h"

namespace flotilla {

size_t DecodeUtf8Replacing(std::string_view bytes, std::string* out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Sequence next = NextUtf8Sequence(bytes.substr(i));
    if (next.kind == Utf8Sequence::Kind::kUnfinished) break;
    if (next.kind == Utf8Sequence::Kind::kCharacter) {
      out->append(bytes.substr(i, next.length));
    } else {
      out->append(kReplacementCharacter);
    }
    i += next.length;
  }
  return i;
}

std::string IncrementalDetokenizer::Push(TokenId id) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(id)) return text;
  std::string_view bytes = tokenizer_->TokenBytes(id);
  if (strip_space_ && !bytes.empty()) {
    strip_space_ = false;
    if (bytes[0] == ' ') bytes.remove_prefix(1);
  }
  held_back_.append(bytes);
  held_back_.erase(0, DecodeUtf8Replacing(held_back_, &text));
  return text;
}

std::string IncrementalDetokenizer::Finish() {
  std::string text;
  // An unfinished character is one maximal subpart: one U+FFFD however many bytes it has.
  if (!held_back_.empty()) text = kReplacementCharacter;
  held_back_.clear();
  return text;
}

}  // namespace flotilla
