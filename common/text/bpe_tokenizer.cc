#include "common/text/bpe_tokenizer.h"

#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/text/bpe_merger.h"
#include "common/text/byte_level.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/special_token_matcher.h"
#include "common/text/vocabulary.h"

namespace flotilla {
namespace {

// A backstop far above any context length; callers have limits of their own.
constexpr size_t kMaxTextBytes = 64u << 20;

using IdByText = absl::flat_hash_map<std::string_view, TokenId>;
// Token of each single byte; −1: none.
using ByteTokens = std::array<TokenId, 256>;

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Vocabulary vocabulary, BpeMerger merger, ByteTokens byte_tokens,
               std::unique_ptr<PreTokenizer> pre_tokenizer)
      : vocabulary_(std::move(vocabulary)),
        merger_(std::move(merger)),
        byte_tokens_(byte_tokens),
        pre_tokenizer_(std::move(pre_tokenizer)) {}

  Status AddSpecialTokens();

  StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                        EncodeOptions options) const override;
  std::string_view TokenBytes(TokenId id) const override { return vocabulary_.Bytes(id); }
  bool IsSpecial(TokenId id) const override {
    const TokenType type = vocabulary_.Type(id);
    return type == TokenType::kControl || type == TokenType::kUnknown;
  }
  uint32_t vocab_size() const override { return vocabulary_.size(); }
  std::vector<TokenId> eos_ids() const override { return vocabulary_.eos_ids(); }
  TokenId bos_id() const override { return vocabulary_.bos_id(); }

 private:
  // Text without special tokens.
  Status EncodePlain(std::string_view text, std::vector<TokenId>* ids) const;

  const Vocabulary vocabulary_;
  const BpeMerger merger_;
  const ByteTokens byte_tokens_;
  const std::unique_ptr<PreTokenizer> pre_tokenizer_;
  SpecialTokenMatcher special_;       // control and user-defined
  SpecialTokenMatcher user_defined_;  // these alone
};

Status BpeTokenizer::AddSpecialTokens() {
  for (TokenId id = 0; vocabulary_.Contains(id); ++id) {
    const TokenType type = vocabulary_.Type(id);
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    const std::string_view text = vocabulary_.Bytes(id);
    if (text.empty()) continue;
    if (text.size() > SpecialTokenMatcher::kMaxLength) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.tokens[", id, "], a special token, has ", text.size(),
                       " bytes; at most ", SpecialTokenMatcher::kMaxLength, " are supported"));
    }
    special_.Add(text, id);
    if (type == TokenType::kUserDefined) user_defined_.Add(text, id);
  }
  return OkStatus();
}

StatusOr<std::vector<TokenId>> BpeTokenizer::Encode(std::string_view text,
                                                    EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes; at most ", kMaxTextBytes, " are taken"));
  }
  if (const std::optional<size_t> offset = FindInvalidUtf8(text); offset.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("text is not valid UTF-8: byte 0x%02X at offset %d",
                        static_cast<uint8_t>(text[*offset]), *offset));
  }
  std::vector<TokenId> ids;
  if (options.add_special && vocabulary_.add_bos()) ids.push_back(vocabulary_.bos_id());
  const SpecialTokenMatcher& matcher = options.parse_special ? special_ : user_defined_;
  for (size_t done = 0; done < text.size();) {
    const SpecialTokenMatcher::Match match = matcher.Find(text, done);
    RETURN_IF_ERROR(EncodePlain(text.substr(done, match.begin - done), &ids));
    if (match.length > 0) ids.push_back(match.id);
    done = match.begin + match.length;
  }
  return ids;
}

Status BpeTokenizer::EncodePlain(std::string_view text, std::vector<TokenId>* ids) const {
  if (text.empty()) return OkStatus();
  std::vector<std::string_view> pieces;
  RETURN_IF_ERROR(pre_tokenizer_->Split(text, &pieces));
  std::vector<TokenId> symbols;
  for (std::string_view piece : pieces) {
    symbols.clear();
    for (char c : piece) {
      const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
      if (id >= 0) symbols.push_back(id);
    }
    if (!symbols.empty()) merger_.Apply(&symbols, ids);
  }
  return OkStatus();
}

StatusOr<ByteTokens> FindByteTokens(const IdByText& ids) {
  ByteTokens result;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string written;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &written);
    const auto found = ids.find(written);
    result[byte] = found == ids.end() ? -1 : found->second;
    if (result[byte] < 0 && byte >= 0x20 && byte < 0x7f) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tokenizer.ggml.tokens has no token for the byte 0x%02X (written '%s')", byte, written));
    }
  }
  return result;
}

StatusOr<BpeMerger> ReadMerges(const GgufFile& gguf, const IdByText& ids) {
  const auto* merges = gguf.FindStrings("tokenizer.ggml.merges");
  if (merges == nullptr || merges->size() >= UINT32_MAX)
    return absl::InvalidArgumentError("tokenizer.ggml.merges must be an array of strings");
  const auto wrong = [&](uint32_t rank, std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.merges[", rank, "] '",
                                                   std::string((*merges)[rank].substr(0, 64)), "' ",
                                                   std::string(why)));
  };
  BpeMerger merger;
  merger.Reserve(merges->size());
  std::string joined;
  for (uint32_t rank = 0; rank < merges->size(); ++rank) {
    const std::string_view merge = (*merges)[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size())
      return wrong(rank, "is not two tokens with a space between");
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto left = ids.find(merge.substr(0, space));
    const auto right = ids.find(merge.substr(space + 1));
    const auto merged = ids.find(joined);
    if (left == ids.end() || right == ids.end() || merged == ids.end())
      return wrong(rank, "has parts or a result that are not in tokenizer.ggml.tokens");
    merger.Add(left->second, right->second, rank, merged->second);
  }
  return merger;
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> CreateBpeTokenizer(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(const std::string_view pre, gguf.GetString("tokenizer.ggml.pre"));
  ASSIGN_OR_RETURN(auto pre_tokenizer, PreTokenizer::Create(pre));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Read(gguf, ByteLevelToBytes));
  const std::vector<std::string_view>& tokens = *gguf.FindStrings("tokenizer.ggml.tokens");
  IdByText ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = static_cast<TokenId>(i);
  ASSIGN_OR_RETURN(const ByteTokens byte_tokens, FindByteTokens(ids));
  ASSIGN_OR_RETURN(BpeMerger merger, ReadMerges(gguf, ids));
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(vocabulary), std::move(merger),
                                                  byte_tokens, std::move(pre_tokenizer));
  RETURN_IF_ERROR(tokenizer->AddSpecialTokens());
  return tokenizer;
}

}  // namespace flotilla
