#include "common/text/added_tokens.h"

#include <algorithm>

#include "common/base/utf8.h"

namespace flotilla {
namespace {

bool IsSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

size_t SpaceAtStart(std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    size_t length = 0;
    if (!IsSpace(CodePointAt(text, done, &length))) break;
    done += length;
  }
  return done;
}

size_t SpaceAtEnd(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t at = begin - 1;
    while ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
    size_t length = 0;
    if (!IsSpace(CodePointAt(text, at, &length))) break;
    begin = at;
  }
  return text.size() - begin;
}

Status CheckLength(std::string_view text) {
  if (text.size() <= SpecialTokenMatcher::kMaxLength) return OkStatus();
  return absl::InvalidArgumentError(StrCat("a special token has ", text.size(), " bytes; at most ",
                                           SpecialTokenMatcher::kMaxLength, " are supported"));
}

}  // namespace

Status AddedTokens::Add(const AddedToken& token, const Normalizer& normalizer) {
  RETURN_IF_ERROR(CheckLength(token.text));
  std::string scratch;
  const std::string_view text =
      token.normalized ? normalizer.Apply(token.text, /*at_start=*/true, &scratch) : token.text;
  RETURN_IF_ERROR(CheckLength(text));
  // It would cut a prompt within a character.
  if (FindInvalidUtf8(text).has_value())
    return absl::InvalidArgumentError("a special token is not valid UTF-8");
  if (text.empty()) return OkStatus();
  num_bytes_ += text.size();
  if (num_bytes_ > kMaxBytes) {
    return absl::InvalidArgumentError(
        StrCat("the special tokens have over ", kMaxBytes, " bytes together"));
  }
  Kind& kind = token.normalized ? normalized_ : as_it_is_;
  kind.empty = false;
  kind.all.Add(text, token.id);
  if (!token.special) kind.not_special.Add(text, token.id);
  if (token.lstrip || token.rstrip) strips_[token.id] = {token.lstrip, token.rstrip};
  return OkStatus();
}

std::vector<AddedTokens::Part> AddedTokens::Cut(std::string_view text, bool parse_special) const {
  return CutBy(as_it_is_, text, parse_special);
}

std::vector<AddedTokens::Part> AddedTokens::CutNormalized(std::string_view text,
                                                          bool parse_special) const {
  return CutBy(normalized_, text, parse_special);
}

std::vector<AddedTokens::Part> AddedTokens::CutBy(const Kind& kind, std::string_view text,
                                                  bool parse_special) const {
  std::vector<Part> parts;
  const SpecialTokenMatcher& matcher = parse_special ? kind.all : kind.not_special;
  for (size_t done = 0; done < text.size();) {
    const SpecialTokenMatcher::Match match =
        kind.empty ? SpecialTokenMatcher::Match{text.size(), 0, -1} : matcher.Find(text, done);
    size_t begin = match.begin;
    size_t end = match.begin + match.length;
    const auto strips = strips_.find(match.id);
    if (match.length > 0 && strips != strips_.end()) {
      if (strips->second.lstrip) begin -= SpaceAtEnd(text.substr(done, begin - done));
      if (strips->second.rstrip) end += SpaceAtStart(text.substr(end));
    }
    if (begin > done) parts.push_back({text.substr(done, begin - done), -1});
    if (match.length > 0) parts.push_back({text.substr(begin, end - begin), match.id});
    done = end;
  }
  return parts;
}

}  // namespace flotilla
