#include "common/text/tokenizer_json.h"

#include <boost/json/array.hpp>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "common/text/bpe_tokenizer.h"
#include "common/text/byte_level.h"
#include "common/text/json_node.h"
#include "common/text/metaspace.h"
#include "common/text/tokenizer_json_components.h"

namespace flotilla {
namespace {

using internal::JsonNode;

constexpr size_t kMaxJsonBytes = 128u << 20;  // Gemma's has 33 MB
constexpr size_t kMaxDepth = 32;

// One token, whichever list of the file it stands in.
struct Token {
  std::string_view text;
  TokenType type = TokenType::kUnused;  // an id without a token
};

struct File {
  JsonNode root;
  JsonNode model;
  std::vector<Token> tokens;                                  // by id
  absl::flat_hash_map<std::string_view, TokenId> vocabulary;  // model.vocab
};

// Ids may have holes, but not so many that a small file takes much memory.
uint32_t MaxId(size_t num_tokens) { return static_cast<uint32_t>(2 * num_tokens + 1024); }

Status SetToken(const JsonNode& node, uint32_t id, Token token, std::vector<Token>* tokens) {
  if (id >= tokens->size()) tokens->resize(id + 1);
  Token& there = (*tokens)[id];
  if (there.type != TokenType::kUnused && there.text != token.text) {
    return node.Error(StrCat("gives the id ", id, " to '", token.text.substr(0, 64), "', which '",
                             there.text.substr(0, 64), "' has"));
  }
  there = token;
  return OkStatus();
}

Status ReadVocabulary(File* file) {
  const JsonNode vocab = file->model["vocab"];
  ASSIGN_OR_RETURN(const boost::json::object* members, vocab.Object());
  if (members->empty() || members->size() > Vocabulary::kMaxTokens)
    return vocab.MustBe(StrCat("an object of 1 to ", Vocabulary::kMaxTokens, " tokens"));
  ASSIGN_OR_RETURN(const bool byte_fallback, file->model["byte_fallback"].BoolOr(false));
  file->vocabulary.reserve(members->size());
  const uint32_t max_id = MaxId(members->size());
  for (const auto& member : *members) {
    const std::string_view text(member.key().data(), member.key().size());
    const JsonNode node(&member.value(), StrCat("model.vocab['", text.substr(0, 64), "']"));
    ASSIGN_OR_RETURN(const uint32_t id, node.Uint(max_id));
    const bool byte = byte_fallback && ParseByteToken(text).has_value();
    const TokenType type = byte ? TokenType::kByte : TokenType::kNormal;
    RETURN_IF_ERROR(SetToken(node, id, {text, type}, &file->tokens));
    file->vocabulary[text] = static_cast<TokenId>(id);
  }
  return OkStatus();
}

// The two parts of a merge: "a b" or ["a", "b"].
Status ReadMerge(const JsonNode& node, const boost::json::value& value,
                 std::pair<std::string_view, std::string_view>* parts) {
  if (const boost::json::string* text = value.if_string()) {
    const std::string_view merge(text->data(), text->size());
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos)
      return node.Error("is not two tokens with a space between");
    *parts = {merge.substr(0, space), merge.substr(space + 1)};
    return OkStatus();
  }
  const boost::json::array* pair = value.if_array();
  if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string())
    return node.MustBe("two tokens");
  const auto part = [&](size_t i) {
    const boost::json::string& text = (*pair)[i].get_string();
    return std::string_view(text.data(), text.size());
  };
  *parts = {part(0), part(1)};
  return OkStatus();
}

StatusOr<BpeMerger> ReadMerges(const File& file) {
  const JsonNode list = file.model["merges"];
  ASSIGN_OR_RETURN(const boost::json::array* merges, list.Array());
  BpeMerger merger;
  merger.Reserve(merges->size());
  std::string joined;
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    std::pair<std::string_view, std::string_view> parts;
    const auto node = [&] { return list.Element((*merges)[rank], rank); };
    if (Status read = ReadMerge(list, (*merges)[rank], &parts); !read.ok())
      return ReadMerge(node(), (*merges)[rank], &parts);
    joined.assign(parts.first).append(parts.second);
    const auto left = file.vocabulary.find(parts.first);
    const auto right = file.vocabulary.find(parts.second);
    const auto merged = file.vocabulary.find(joined);
    const auto end = file.vocabulary.end();
    if (left == end || right == end || merged == end)
      return node().Error("has parts or a result that are not in model.vocab");
    merger.Add(left->second, right->second, static_cast<uint32_t>(rank), merged->second);
  }
  return merger;
}

// What would change the ids and is not supported is refused, not ignored.
Status RefuseUnsupported(const JsonNode& model) {
  ASSIGN_OR_RETURN(const std::string_view type, model.Type());
  const bool old_gpt2 = type.empty() && !model["merges"].is_null();
  if (type != "BPE" && !old_gpt2) return model.Unsupported(type, "BPE");
  if (!model["dropout"].is_null())
    return model["dropout"].Error("must be null: encoding is not random");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode node = model[key];
    if (node.is_null()) continue;
    ASSIGN_OR_RETURN(const std::string_view text, node.String());
    if (!text.empty()) return node.Error("must be null or empty: it is not supported");
  }
  return OkStatus();
}

Status ReadAddedTokens(File* file, const Normalizer& normalizer, AddedTokens* added) {
  const JsonNode list = file->root["added_tokens"];
  if (list.is_null()) return OkStatus();
  ASSIGN_OR_RETURN(const boost::json::array* elements, list.Array());
  const uint32_t max_id = MaxId(file->tokens.size() + elements->size());
  for (size_t i = 0; i < elements->size(); ++i) {
    const JsonNode node = list.Element((*elements)[i], i);
    AddedToken token;
    ASSIGN_OR_RETURN(const uint32_t id, node["id"].Uint(max_id));
    ASSIGN_OR_RETURN(token.text, node["content"].String());
    ASSIGN_OR_RETURN(token.special, node["special"].BoolOr(false));
    ASSIGN_OR_RETURN(token.normalized, node["normalized"].BoolOr(!token.special));
    ASSIGN_OR_RETURN(token.lstrip, node["lstrip"].BoolOr(false));
    ASSIGN_OR_RETURN(token.rstrip, node["rstrip"].BoolOr(false));
    ASSIGN_OR_RETURN(const bool single_word, node["single_word"].BoolOr(false));
    if (single_word) return node["single_word"].Error("is true, which is not supported");
    token.id = static_cast<TokenId>(id);
    const auto known = file->vocabulary.find(token.text);
    if (known != file->vocabulary.end() && known->second != token.id) {
      return node["id"].Error(StrCat("is ", id, ", but model.vocab gives '",
                                     token.text.substr(0, 64), "' the id ", known->second));
    }
    const TokenType type = token.special ? TokenType::kControl : TokenType::kUserDefined;
    RETURN_IF_ERROR(SetToken(node, id, {token.text, type}, &file->tokens));
    if (const Status status = added->Add(token, normalizer); !status.ok())
      return node.Error(StrCat(": ", status.message()));
  }
  return OkStatus();
}

Status FillSymbols(const File& file, bool byte_level, SymbolTable* symbols) {
  if (byte_level) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      std::string written;
      AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &written);
      if (const auto found = file.vocabulary.find(written); found != file.vocabulary.end())
        symbols->SetByte(static_cast<uint8_t>(byte), found->second);
    }
  } else {
    ASSIGN_OR_RETURN(const bool byte_fallback, file.model["byte_fallback"].BoolOr(false));
    for (const auto& [text, id] : file.vocabulary) {
      if (const auto byte = ParseByteToken(text); byte_fallback && byte.has_value())
        symbols->SetByte(*byte, id);
      if (text.empty()) continue;
      size_t length = 0;
      const char32_t character = CodePointAt(text, 0, &length);
      if (length == text.size()) symbols->SetCharacter(character, id);
    }
  }
  const JsonNode unknown = file.model["unk_token"];
  if (!unknown.is_null()) {
    ASSIGN_OR_RETURN(const std::string_view text, unknown.String());
    const auto found = file.vocabulary.find(text);
    if (found == file.vocabulary.end()) return unknown.Error("is not in model.vocab");
    ASSIGN_OR_RETURN(const bool fuse, file.model["fuse_unk"].BoolOr(false));
    symbols->SetUnknown(found->second, fuse);
  }
  if (const std::optional<char> missing = symbols->FindUnwritable(); missing.has_value()) {
    return file.model["vocab"].Error(
        StrCat("has no token for '", std::string_view(&*missing, 1), "'"));
  }
  return OkStatus();
}

// The bytes of each token, as the file's decoder makes them.
Status FillVocabulary(const File& file, const internal::Decoding& decoding, Vocabulary* out) {
  out->Reserve(file.tokens.size());
  for (const Token& token : file.tokens) {
    std::string bytes(token.text);
    TokenType type = token.type;
    if (token.type == TokenType::kByte && decoding.byte_fallback) {
      bytes.assign(1, static_cast<char>(*ParseByteToken(token.text)));
    } else if (token.type == TokenType::kNormal && decoding.byte_level) {
      if (std::optional<std::string> read = ByteLevelToBytes(token.text); read.has_value()) {
        bytes = *std::move(read);
      } else {
        type = TokenType::kUnused;  // no text is written with it
      }
    } else if (decoding.metaspace) {  // added ones too: Gemma has spaces among them
      bytes = MetaspaceToBytes(token.text);
    }
    RETURN_IF_ERROR(out->Add(bytes, type));
  }
  return OkStatus();
}

Status CheckDecoder(const File& file, const internal::Decoding& decoding, bool byte_level) {
  const JsonNode decoder = file.root["decoder"];
  if (byte_level != decoding.byte_level) {
    return decoder.Error(byte_level ? "is not ByteLevel, but the pre_tokenizer is"
                                    : "is ByteLevel, but the pre_tokenizer is not");
  }
  ASSIGN_OR_RETURN(const bool byte_fallback, file.model["byte_fallback"].BoolOr(false));
  if (byte_level && byte_fallback)
    return file.model["byte_fallback"].Error("is true beside ByteLevel: not supported");
  if (byte_fallback && !decoding.byte_fallback)
    return decoder.Error("has no ByteFallback, but model.byte_fallback is true");
  if (!byte_level && !decoding.metaspace)
    return decoder.Error("neither is ByteLevel nor replaces '▁' by ' '; others are not supported");
  return OkStatus();
}

StatusOr<std::vector<TokenId>> EosIds(const Vocabulary& vocabulary, std::span<const TokenId> told,
                                      std::string_view token) {
  for (const TokenId id : told) {
    if (vocabulary.Contains(id)) continue;
    return absl::InvalidArgumentError(
        StrCat("the end-of-text id ", id, " is not one of the ", vocabulary.size(), " tokens"));
  }
  std::vector<TokenId> ids(told.begin(), told.end());
  for (TokenId id = 0; told.empty() && !token.empty() && vocabulary.Contains(id); ++id) {
    if (vocabulary.Type(id) == TokenType::kControl && vocabulary.Bytes(id) == token) {
      ids.push_back(id);
    }
  }
  return ids;
}

StatusOr<std::unique_ptr<Tokenizer>> Build(File* file, std::span<const TokenId> eos_ids,
                                           std::string_view eos_token) {
  RETURN_IF_ERROR(RefuseUnsupported(file->model));
  RETURN_IF_ERROR(ReadVocabulary(file));
  BpeParts parts;
  RETURN_IF_ERROR(ReadNormalizer(file->root["normalizer"], &parts.normalizer));
  internal::PreTokenization pre;
  RETURN_IF_ERROR(ReadPreTokenizer(file->root["pre_tokenizer"], &pre));
  internal::Decoding decoding;
  RETURN_IF_ERROR(ReadDecoder(file->root["decoder"], &decoding));
  RETURN_IF_ERROR(CheckDecoder(*file, decoding, pre.byte_level));
  RETURN_IF_ERROR(ReadAddedTokens(file, parts.normalizer, &parts.added_tokens));
  ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::Create(pre.stages));
  parts.metaspace = std::move(pre.metaspace);
  parts.symbols =
      SymbolTable(pre.byte_level ? SymbolTable::Kind::kBytes : SymbolTable::Kind::kCharacters);
  RETURN_IF_ERROR(FillSymbols(*file, pre.byte_level, &parts.symbols));
  ASSIGN_OR_RETURN(parts.merger, ReadMerges(*file));
  ASSIGN_OR_RETURN(parts.ignore_merges, file->model["ignore_merges"].BoolOr(false));
  if (parts.ignore_merges && !pre.byte_level)
    return file->model["ignore_merges"].Error("is true without ByteLevel: not supported");
  parts.strips_leading_space = decoding.strips_leading_space;
  RETURN_IF_ERROR(FillVocabulary(*file, decoding, &parts.vocabulary));
  internal::SpecialIds special;
  RETURN_IF_ERROR(
      ReadPostProcessor(file->root["post_processor"], parts.vocabulary.size(), &special));
  if (!special.prefix.empty()) parts.vocabulary.set_bos_id(special.prefix[0]);
  ASSIGN_OR_RETURN(std::vector<TokenId> ends, EosIds(parts.vocabulary, eos_ids, eos_token));
  parts.vocabulary.SetEosIds(std::move(ends));
  parts.prefix = std::move(special.prefix);
  parts.suffix = std::move(special.suffix);
  return MakeBpeTokenizer(std::move(parts));
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> CreateTokenizerFromJson(std::string_view json,
                                                             std::span<const TokenId> eos_ids,
                                                             std::string_view eos_token) {
  if (json.size() > kMaxJsonBytes) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer.json has ", json.size(), " bytes; at most ", kMaxJsonBytes, " are read"));
  }
  boost::json::monotonic_resource memory;
  boost::json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::json::error_code error;
  const boost::json::value document =
      boost::json::parse({json.data(), json.size()}, error, &memory, options);
  if (error) return absl::InvalidArgumentError(StrCat("tokenizer.json: ", error.message()));
  const JsonNode root(&document, "");
  File file{root, root["model"], {}, {}};
  return Build(&file, eos_ids, eos_token);
}

}  // namespace flotilla
