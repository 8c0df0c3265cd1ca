// libFuzzer: text and ids against tokenizers of each kind, and split patterns against broken text.
//
// The first byte chooses a tokenizer and whether control tokens are parsed; the rest is the text.
// What must hold: a valid text is encoded, or refused for being too hard; every id is one of the
// vocabulary; ids decode to valid UTF-8, in pieces as at once; and where nothing is normalised, to
// the text itself.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/byte_level.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/pre_tokenizer_table.h"
#include "common/text/tokenizer.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

std::unique_ptr<Tokenizer> Create(const testing::GgufBuilder& builder) {
  const std::string bytes = builder.Build();
  StatusOr<GgufFile> gguf = GgufFile::Parse(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, {.metadata_only = true});
  CHECK(gguf.ok());
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(*gguf);
  CHECK(tokenizer.ok());
  return std::move(*tokenizer);
}

std::unique_ptr<Tokenizer> ByteLevel(const std::string& pre) {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) {
    tokens.emplace_back();
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(b)), &tokens.back());
  }
  std::vector<std::string> merges;
  for (const char* merge : {"Ġ a", "a b", "Ġa b", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 2", "Ã ©"}) {
    merges.emplace_back(merge);
    tokens.push_back(merges.back());
    tokens.back().erase(tokens.back().find(' '), 1);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  tokens.insert(tokens.end(), {"<|end|>", "<|e", "  \n"});
  types.insert(types.end(), {3, 3, 4});
  testing::GgufBuilder builder;
  builder.AddString("tokenizer.ggml.model", "gpt2");
  builder.AddString("tokenizer.ggml.pre", pre);
  builder.AddStrings("tokenizer.ggml.tokens", tokens);
  builder.AddInts("tokenizer.ggml.token_type", types);
  builder.AddStrings("tokenizer.ggml.merges", merges);
  return Create(builder);
}

std::unique_ptr<Tokenizer> SentencePiece(bool space_prefix) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "  "};
  std::vector<int32_t> types = {2, 3, 4};
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(absl::StrFormat("<0x%02X>", b));
    types.push_back(6);
  }
  for (const char* piece : {"▁", "a", "b", "é", "▁a", "ab", "▁ab", "▁▁", "aa", "éa"}) {
    tokens.emplace_back(piece);
    types.push_back(1);
  }
  std::vector<float> scores;
  for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<float>(i / 2));
  testing::GgufBuilder builder;
  builder.AddString("tokenizer.ggml.model", "llama");
  builder.AddStrings("tokenizer.ggml.tokens", tokens);
  builder.AddInts("tokenizer.ggml.token_type", types);
  builder.AddFloats("tokenizer.ggml.scores", scores);
  builder.AddBool("tokenizer.ggml.add_space_prefix", space_prefix);
  return Create(builder);
}

struct Kind {
  std::unique_ptr<Tokenizer> tokenizer;
  bool exact;  // the text comes back
};

void CheckRoles(const Tokenizer& tokenizer) {
  const auto known = [&](TokenId id) {
    return id >= 0 && static_cast<uint32_t>(id) < tokenizer.vocab_size();
  };
  for (TokenId id : tokenizer.eos_ids()) CHECK(known(id));
  CHECK(tokenizer.bos_id() == -1 || known(tokenizer.bos_id()));
}

std::vector<Kind> MakeKinds() {
  std::vector<Kind> kinds;
  for (const char* pre : {"deepseek-coder", "deepseek-llm", "deepseek-v3", "falcon", "gpt-2",
                          "gpt-4o", "llama-bpe", "smollm", "tekken"})
    kinds.push_back({ByteLevel(pre), true});
  for (const char* pre : {"qwen2", "qwen35"}) kinds.push_back({ByteLevel(pre), false});
  for (bool prefix : {false, true}) kinds.push_back({SentencePiece(prefix), false});
  for (const Kind& kind : kinds) CheckRoles(*kind.tokenizer);
  return kinds;
}

std::string InPieces(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  IncrementalDetokenizer detokenizer(&tokenizer, false, IncrementalDetokenizer::Begins::kSequence);
  std::string text;
  for (TokenId id : ids) {
    const std::string piece = detokenizer.Push(id);
    CHECK(!FindInvalidUtf8(piece).has_value());
    text += piece;
  }
  return text + detokenizer.Finish();
}

void FuzzText(const Kind& kind, bool parse_special, const std::string& text) {
  const Tokenizer& tokenizer = *kind.tokenizer;
  const StatusOr<std::vector<TokenId>> ids =
      tokenizer.Encode(text, {.parse_special = parse_special});
  const std::string valid = ToValidUtf8(text);
  CHECK(!FindInvalidUtf8(valid).has_value());
  CHECK((valid == text) == !FindInvalidUtf8(text).has_value());
  if (FindInvalidUtf8(text).has_value()) {
    CHECK(ids.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  CHECK(ids.ok() || ids.status().code() == absl::StatusCode::kResourceExhausted);
  if (!ids.ok()) return;
  for (TokenId id : *ids) CHECK(id >= 0 && static_cast<uint32_t>(id) < tokenizer.vocab_size());
  const std::string decoded = tokenizer.Decode(*ids, false);
  CHECK(!FindInvalidUtf8(decoded).has_value());
  CHECK(InPieces(tokenizer, *ids) == decoded);
  CHECK(!kind.exact || decoded == text);
  CHECK(!FindInvalidUtf8(tokenizer.Decode(*ids, true)).has_value());
}

void FuzzIds(const Tokenizer& tokenizer, const std::string& bytes) {
  std::vector<TokenId> ids;
  for (char c : bytes)
    ids.push_back(static_cast<TokenId>(static_cast<uint8_t>(c)) + ids.size() % 3);
  CHECK(InPieces(tokenizer, ids) == tokenizer.Decode(ids, false));
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<flotilla::Kind>* const kinds =
      new std::vector<flotilla::Kind>(flotilla::MakeKinds());
  if (size == 0) return 0;
  const flotilla::Kind& kind = (*kinds)[(data[0] >> 1) % kinds->size()];
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  flotilla::FuzzText(kind, data[0] & 1, text);
  flotilla::FuzzIds(*kind.tokenizer, text);
  return 0;
}
