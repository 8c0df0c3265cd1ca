// CreateTokenizer of a GGUF: reads tokenizer.ggml.* into the parts of a BPE tokenizer.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/text/bpe_tokenizer.h"
#include "common/text/byte_level.h"
#include "common/text/metaspace.h"
#include "common/text/pre_tokenizer_table.h"
#include "common/text/score_merges.h"
#include "common/text/tokenizer.h"

namespace flotilla {
namespace {

using IdByText = absl::flat_hash_map<std::string_view, TokenId>;

// The lists of the file, checked to fit each other.
struct Tokens {
  const std::vector<std::string_view>* texts = nullptr;
  std::vector<TokenType> types;

  size_t size() const { return texts->size(); }
  IdByText Ids() const {
    IdByText ids;
    ids.reserve(size());
    for (size_t i = 0; i < size(); ++i) ids[(*texts)[i]] = static_cast<TokenId>(i);
    return ids;
  }
};

bool Has(const GgufFile& gguf, std::string_view key) {
  return gguf.metadata().find(key) != gguf.metadata().end();
}

StatusOr<bool> GetBoolOr(const GgufFile& gguf, std::string_view key, bool fallback) {
  if (!Has(gguf, key)) return fallback;
  return gguf.GetBool(key);
}

StatusOr<Tokens> ReadTokens(const GgufFile& gguf) {
  Tokens tokens;
  tokens.texts = gguf.FindStrings("tokenizer.ggml.tokens");
  if (tokens.texts == nullptr || tokens.texts->empty() ||
      tokens.texts->size() > Vocabulary::kMaxTokens) {
    return absl::InvalidArgumentError(StrCat("tokenizer.ggml.tokens must be an array of 1 to ",
                                             Vocabulary::kMaxTokens, " strings"));
  }
  const auto* types = gguf.FindInts("tokenizer.ggml.token_type");
  if (types != nullptr && types->size() != tokens.size()) {
    return absl::InvalidArgumentError(StrCat("tokenizer.ggml.token_type has ", types->size(),
                                             " entries for ", tokens.size(), " tokens"));
  }
  tokens.types.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t type = types == nullptr ? 1 : (*types)[i];
    if (type < 1 || type > 6) {
      return absl::InvalidArgumentError(
          StrCat("tokenizer.ggml.token_type[", i, "] is ", type, ", not 1 to 6"));
    }
    tokens.types.push_back(static_cast<TokenType>(type));
  }
  return tokens;
}

// −1: the file has no such key.
StatusOr<TokenId> ReadId(const GgufFile& gguf, std::string_view key, size_t num_tokens) {
  if (!Has(gguf, key)) return -1;
  ASSIGN_OR_RETURN(const uint64_t id, gguf.GetUint(key));
  if (id >= num_tokens) {
    return absl::InvalidArgumentError(
        StrCat(key, " is ", id, ", but there are only ", num_tokens, " tokens"));
  }
  return static_cast<TokenId>(id);
}

Status ReadRoles(const GgufFile& gguf, bool add_bos, BpeParts* parts) {
  Vocabulary& vocabulary = parts->vocabulary;
  const size_t size = vocabulary.size();
  ASSIGN_OR_RETURN(const TokenId bos, ReadId(gguf, "tokenizer.ggml.bos_token_id", size));
  ASSIGN_OR_RETURN(const TokenId eos, ReadId(gguf, "tokenizer.ggml.eos_token_id", size));
  ASSIGN_OR_RETURN(add_bos, GetBoolOr(gguf, "tokenizer.ggml.add_bos_token", add_bos));
  ASSIGN_OR_RETURN(const bool add_eos, GetBoolOr(gguf, "tokenizer.ggml.add_eos_token", false));
  vocabulary.set_bos_id(bos);
  if (add_bos && bos >= 0) parts->prefix.push_back(bos);
  if (add_eos && eos >= 0) parts->suffix.push_back(eos);
  std::vector<TokenId> ends;
  if (eos >= 0) ends.push_back(eos);
  for (std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const TokenId id, ReadId(gguf, key, size));
    if (id >= 0) ends.push_back(id);
  }
  vocabulary.SetEosIds(std::move(ends));
  return OkStatus();
}

// Phi-3's special tokens take the white space after them. Its tokenizer.json says so; a GGUF has no
// field for it.
bool IsPhi3(const GgufFile& gguf) {
  const auto field = gguf.GetString("general.name");
  if (!field.ok()) return false;
  const std::string name = absl::AsciiStrToLower(absl::string_view(field->data(), field->size()));
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}
bool Phi3StripsAfter(std::string_view token, bool special) {
  if (token == "</s>") return true;
  return special && token != "<unk>" && token != "<s>" && token != "<|endoftext|>";
}

Status ReadAddedTokens(const GgufFile& gguf, const Tokens& tokens, BpeParts* parts) {
  const bool is_phi3 = IsPhi3(gguf);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenType type = tokens.types[i];
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if (!special && type != TokenType::kUserDefined) continue;
    const std::string_view text = (*tokens.texts)[i];
    const Status added =
        parts->added_tokens.Add({.id = static_cast<TokenId>(i),
                                 .text = text,
                                 .special = special,
                                 .rstrip = is_phi3 && Phi3StripsAfter(text, special)},
                                parts->normalizer);
    if (!added.ok()) return Annotate(added, StrCat("tokenizer.ggml.tokens[", i, "]"));
  }
  return OkStatus();
}

StatusOr<BpeMerger> ReadMerges(const GgufFile& gguf, const IdByText& ids) {
  const auto* merges = gguf.FindStrings("tokenizer.ggml.merges");
  if (merges == nullptr || merges->size() >= UINT32_MAX)
    return absl::InvalidArgumentError("tokenizer.ggml.merges must be an array of strings");
  const auto wrong = [&](uint32_t rank, std::string_view why) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer.ggml.merges[", rank, "] '", (*merges)[rank].substr(0, 64), "' ", why));
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

// --- tokenizer.ggml.model ---

// "gpt2": byte level.
Status ReadByteLevel(const GgufFile& gguf, const Tokens& tokens, BpeParts* parts) {
  ASSIGN_OR_RETURN(const std::string_view pre, gguf.GetString("tokenizer.ggml.pre"));
  const PreTokenizerRow* row = FindPreTokenizer(pre);
  if (row == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer.ggml.pre is '", pre.substr(0, 64),
               "', which is not supported; known: ", KnownPreTokenizers()));
  }
  if (row->nfc) parts->normalizer.AddNfc();
  ASSIGN_OR_RETURN(parts->pre_tokenizer, PreTokenizer::Create(row->used_stages()));
  parts->ignore_merges = row->ignore_merges;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view text = (*tokens.texts)[i];
    TokenType type = tokens.types[i];
    std::optional<std::string> bytes;
    if (type == TokenType::kNormal) {
      bytes = ByteLevelToBytes(text);
      if (!bytes.has_value()) type = TokenType::kUnused;  // no text is written with it
    }
    RETURN_IF_ERROR(parts->vocabulary.Add(bytes.has_value() ? *bytes : text, type));
  }
  const IdByText ids = tokens.Ids();
  for (uint32_t byte = 0; byte < 256; ++byte) {
    std::string written;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &written);
    if (const auto found = ids.find(written); found != ids.end()) {
      parts->symbols.SetByte(static_cast<uint8_t>(byte), found->second);
    }
  }
  ASSIGN_OR_RETURN(parts->merger, ReadMerges(gguf, ids));
  return ReadRoles(gguf, row->add_bos, parts);
}

// The tokens of a vocabulary that writes a space as ▁ and has tokens for bytes (<0x41>).
Status ReadCharacters(const GgufFile& gguf, const Tokens& tokens, BpeParts* parts) {
  parts->normalizer.AddReplace(" ", std::string(kMetaspace));
  ASSIGN_OR_RETURN(TokenId unknown, ReadId(gguf, "tokenizer.ggml.unknown_token_id", tokens.size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenId id = static_cast<TokenId>(i);
    const std::string_view text = (*tokens.texts)[i];
    const TokenType type = tokens.types[i];
    const std::optional<uint8_t> byte = ParseByteToken(text);
    if (type == TokenType::kByte) {
      if (!byte.has_value()) {
        return absl::InvalidArgumentError(StrCat("tokenizer.ggml.tokens[", i, "] '",
                                                 text.substr(0, 64),
                                                 "' is a byte that is not written like <0x41>"));
      }
      parts->symbols.SetByte(*byte, id);
      const char value = static_cast<char>(*byte);
      RETURN_IF_ERROR(parts->vocabulary.Add({&value, 1}, type));
      continue;
    }
    const bool normal = type == TokenType::kNormal;
    RETURN_IF_ERROR(
        parts->vocabulary.Add(normal ? MetaspaceToBytes(text) : std::string(text), type));
    if (!normal || text.empty() || FindInvalidUtf8(text).has_value()) continue;
    size_t length = 0;
    const char32_t character = CodePointAt(text, 0, &length);
    if (length == text.size()) parts->symbols.SetCharacter(character, id);
  }
  parts->symbols.SetUnknown(unknown, /*fuse=*/true);
  return OkStatus();
}

// "llama": SentencePiece's BPE, by scores.
Status ReadSentencePiece(const GgufFile& gguf, const Tokens& tokens, BpeParts* parts) {
  ASSIGN_OR_RETURN(const bool prefix, GetBoolOr(gguf, "tokenizer.ggml.add_space_prefix", true));
  if (prefix) parts->normalizer.AddPrepend(std::string(kMetaspace));
  parts->strips_leading_space = prefix;
  RETURN_IF_ERROR(ReadCharacters(gguf, tokens, parts));
  const auto* scores = gguf.FindFloats("tokenizer.ggml.scores");
  if (scores == nullptr || scores->size() != tokens.size()) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer.ggml.scores must be an array of ", tokens.size(), " floats"));
  }
  ASSIGN_OR_RETURN(parts->merger, MergesByScore({*tokens.texts, tokens.types, *scores}));
  return ReadRoles(gguf, /*add_bos=*/true, parts);
}

// "gemma4": the same with merges instead of scores.
Status ReadGemma4(const GgufFile& gguf, const Tokens& tokens, BpeParts* parts) {
  RETURN_IF_ERROR(ReadCharacters(gguf, tokens, parts));
  ASSIGN_OR_RETURN(parts->merger, ReadMerges(gguf, tokens.Ids()));
  return ReadRoles(gguf, /*add_bos=*/true, parts);
}

struct Model {
  std::string_view name;
  SymbolTable::Kind symbols;
  Status (*read)(const GgufFile& gguf, const Tokens& tokens, BpeParts* parts);
};
constexpr std::array<Model, 3> kModels = {{
    {"gemma4", SymbolTable::Kind::kCharacters, ReadGemma4},
    {"gpt2", SymbolTable::Kind::kBytes, ReadByteLevel},
    {"llama", SymbolTable::Kind::kCharacters, ReadSentencePiece},
}};

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizer(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(const std::string_view name, gguf.GetString("tokenizer.ggml.model"));
  const auto* model =
      std::find_if(kModels.begin(), kModels.end(), [&](const Model& m) { return m.name == name; });
  if (model == kModels.end()) {
    return absl::InvalidArgumentError(StrCat("tokenizer.ggml.model is '", name.substr(0, 64),
                                             "', which is not supported; known: gemma4, gpt2, "
                                             "llama"));
  }
  ASSIGN_OR_RETURN(const Tokens tokens, ReadTokens(gguf));
  BpeParts parts;
  parts.symbols = SymbolTable(model->symbols);
  parts.vocabulary.Reserve(tokens.size());
  RETURN_IF_ERROR(model->read(gguf, tokens, &parts));
  if (const std::optional<char> missing = parts.symbols.FindUnwritable(); missing.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tokenizer.ggml.tokens has no token for '%c'", *missing));
  }
  RETURN_IF_ERROR(ReadAddedTokens(gguf, tokens, &parts));
  return MakeBpeTokenizer(std::move(parts));
}

}  // namespace flotilla
