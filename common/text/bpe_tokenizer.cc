#include "common/text/bpe_tokenizer.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace flotilla {
namespace {

// A backstop far above any context length; callers have limits of their own.
constexpr size_t kMaxTextBytes = 64u << 20;

// Most words of a text are one token each: which those are need not be found by merging again.
// A piece that a normal token has the bytes of is that token if the merges make it of them, which
// is known once one of them has been merged, or if the model ignores merges.
//
// Threads: any.
class WholeTokens {
 public:
  enum class Is : uint8_t { kUnknown, kWhole, kMerged };
  WholeTokens(const Vocabulary& vocabulary, bool ignore_merges) : is_(vocabulary.size()) {
    of_bytes_.reserve(vocabulary.size());
    for (TokenId id = 0; vocabulary.Contains(id); ++id) {
      if (vocabulary.Type(id) != TokenType::kNormal) continue;
      of_bytes_[vocabulary.Bytes(id)] = id;
      if (ignore_merges) Set(id, Is::kWhole);
    }
  }
  // The token of these bytes; −1: none.
  TokenId Find(std::string_view piece) const {
    const auto found = of_bytes_.find(piece);
    return found == of_bytes_.end() ? -1 : found->second;
  }
  Is Get(TokenId id) const { return is_[id].load(std::memory_order_relaxed); }
  void Set(TokenId id, Is is) { is_[id].store(is, std::memory_order_relaxed); }

 private:
  absl::flat_hash_map<std::string_view, TokenId> of_bytes_;
  std::vector<std::atomic<Is>> is_;  // by id
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts) : parts_(std::move(parts)) {}

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
  WholeTokens& whole_tokens() const;

  const BpeParts parts_;
  // Made by the first who encodes: most processes only decode.
  mutable std::once_flag whole_tokens_made_;
  mutable std::optional<WholeTokens> whole_tokens_;
};

WholeTokens& BpeTokenizer::whole_tokens() const {
  std::call_once(whole_tokens_made_,
                 [this] { whole_tokens_.emplace(parts_.vocabulary, parts_.ignore_merges); });
  return *whole_tokens_;
}

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
  WholeTokens& whole_tokens = this->whole_tokens();
  std::vector<TokenId> symbols;
  for (std::string_view piece : pieces) {
    using Is = WholeTokens::Is;
    const TokenId whole = whole_tokens.Find(piece);
    const Is known = whole < 0 ? Is::kMerged : whole_tokens.Get(whole);
    if (known == Is::kWhole) {
      ids->push_back(whole);
      continue;
    }
    symbols.clear();
    parts_.symbols.Append(piece, &symbols);
    const size_t before = ids->size();
    if (!symbols.empty()) parts_.merger.Apply(&symbols, ids);
    if (known == Is::kUnknown) {
      const bool is_whole = ids->size() == before + 1 && ids->back() == whole;
      whole_tokens.Set(whole, is_whole ? Is::kWhole : Is::kMerged);
    }
  }
  return OkStatus();
}

}  // namespace

std::unique_ptr<Tokenizer> MakeBpeTokenizer(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace flotilla
