#include "common/text/bpe_tokenizer.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace flotilla {
namespace {

// A backstop far above any context length; callers have limits of their own.
constexpr size_t kMaxTextBytes = 64u << 20;

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts) : parts_(std::move(parts)) {
    if (!parts_.ignore_merges) return;
    const Vocabulary& vocabulary = parts_.vocabulary;
    for (TokenId id = 0; vocabulary.Contains(id); ++id) {
      if (vocabulary.Type(id) == TokenType::kNormal) whole_[vocabulary.Bytes(id)] = id;
    }
  }

  StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                        EncodeOptions options) const override;
  std::string_view TokenBytes(TokenId id) const override { return parts_.vocabulary.Bytes(id); }
  bool IsSpecial(TokenId id) const override {
    const TokenType type = parts_.vocabulary.Type(id);
    return type == TokenType::kControl || type == TokenType::kUnknown;
  }
  uint32_t vocab_size() const override { return parts_.vocabulary.size(); }
  std::vector<TokenId> eos_ids() const override { return parts_.vocabulary.eos_ids(); }
  TokenId bos_id() const override { return parts_.vocabulary.bos_id(); }
  bool strips_leading_space() const override { return parts_.strips_leading_space; }

 private:
  // Text without tokens that stand in it as it is; at_start: the whole text begins here.
  Status EncodeText(std::string_view text, bool at_start, bool parse_special,
                    std::vector<TokenId>* ids) const;
  // Text without special tokens.
  Status EncodePlain(std::string_view text, std::vector<TokenId>* ids) const;

  const BpeParts parts_;
  absl::flat_hash_map<std::string_view, TokenId> whole_;  // normal tokens, for ignore_merges
};

StatusOr<std::vector<TokenId>> BpeTokenizer::Encode(std::string_view text,
                                                    EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        StrCat("text has ", text.size(), " bytes; at most ", kMaxTextBytes, " are taken"));
  }
  if (const std::optional<size_t> offset = FindInvalidUtf8(text); offset.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text is not valid UTF-8: byte 0x%02X at offset %d",
                        static_cast<uint8_t>(text[*offset]), *offset));
  }
  std::vector<TokenId> ids;
  if (options.add_special) ids = parts_.prefix;
  for (const AddedTokens::Part& part : parts_.added_tokens.Cut(text, options.parse_special)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      const bool at_start = part.text.data() == text.data();
      RETURN_IF_ERROR(EncodeText(part.text, at_start, options.parse_special, &ids));
    }
  }
  if (options.add_special) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  return ids;
}

Status BpeTokenizer::EncodeText(std::string_view text, bool at_start, bool parse_special,
                                std::vector<TokenId>* ids) const {
  std::string normalized;
  std::string scratch;
  text = parts_.normalizer.Apply(text, at_start, &normalized);
  for (const AddedTokens::Part& part : parts_.added_tokens.CutNormalized(text, parse_special)) {
    if (part.id >= 0) {
      ids->push_back(part.id);
      continue;
    }
    const bool starts = at_start && part.text.data() == text.data();
    RETURN_IF_ERROR(EncodePlain(parts_.metaspace.Apply(part.text, starts, &scratch), ids));
  }
  return OkStatus();
}

Status BpeTokenizer::EncodePlain(std::string_view text, std::vector<TokenId>* ids) const {
  std::vector<std::string_view> pieces;
  RETURN_IF_ERROR(parts_.pre_tokenizer.Split(text, &pieces));
  std::vector<TokenId> symbols;
  for (std::string_view piece : pieces) {
    if (parts_.ignore_merges) {
      if (const auto whole = whole_.find(piece); whole != whole_.end()) {
        ids->push_back(whole->second);
        continue;
      }
    }
    symbols.clear();
    parts_.symbols.Append(piece, &symbols);
    if (!symbols.empty()) parts_.merger.Apply(&symbols, ids);
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<Tokenizer> MakeBpeTokenizer(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace flotilla
