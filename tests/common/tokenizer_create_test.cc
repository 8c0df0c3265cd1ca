// Small vocabularies made by hand: what CreateTokenizer takes, what it refuses and how it says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "common/text/byte_level.h"
#include "common/text/tokenizer.h"
#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ids: the 256 bytes, "Ġa" (256), "<|end|>" (257, control), "[tool]" (258, user-defined).
struct Fields {
  std::string model = "gpt2";
  std::string pre = "smollm";
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges = {"Ġ a"};
  std::function<void(testing::GgufBuilder*)> more = [](testing::GgufBuilder*) {};

  Fields() {
    for (int b = 0; b < 256; ++b) {
      tokens.emplace_back();
      AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(b)), &tokens.back());
    }
    tokens.insert(tokens.end(), {"Ġa", "<|end|>", "[tool]"});
    types.assign(257, 1);
    types.insert(types.end(), {3, 4});
  }

  StatusOr<std::unique_ptr<Tokenizer>> Create() const {
    testing::GgufBuilder builder;
    if (!model.empty()) builder.AddString("tokenizer.ggml.model", model);
    if (!pre.empty()) builder.AddString("tokenizer.ggml.pre", pre);
    builder.AddStrings("tokenizer.ggml.tokens", tokens);
    builder.AddInts("tokenizer.ggml.token_type", types);
    builder.AddStrings("tokenizer.ggml.merges", merges);
    more(&builder);
    const std::string bytes = builder.Build();
    ASSIGN_OR_RETURN(const GgufFile gguf,
                     GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                     {.metadata_only = true}));
    return CreateTokenizer(gguf);
  }
};

void ExpectRefused(const Fields& fields, const std::string& message) {
  const auto tokenizer = fields.Create();
  ASSERT_FALSE(tokenizer.ok()) << message;
  EXPECT_THAT(tokenizer.status().ToString(), HasSubstr(message));
}

// gpt-oss: <|end|> ends one message of several there.
TEST(TokenizerCreateTest, EndOfAMessageIsNotTheEndWhereThereIsAReturn) {
  Fields fields;
  fields.tokens.insert(fields.tokens.end(), {"<|return|>", "<|call|>"});
  fields.types.insert(fields.types.end(), {3, 3});
  auto tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->eos_ids(), ElementsAre(259, 260));
  fields.types[259] = 1;  // an ordinary word
  tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->eos_ids(), ElementsAre(257, 260));
}

// llama-bpe takes a piece that is a token as it is. "日" is not written in the byte-level alphabet,
// so the library never finds it.
TEST(TokenizerCreateTest, ATokenThatNoTextIsWrittenWithIsOnlyDecoded) {
  Fields fields;
  fields.pre = "llama-bpe";
  fields.tokens.emplace_back("日");
  fields.types.push_back(1);
  const auto tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("日"), ElementsAre(0xe6, 0x97, 0xa5));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{259}, true), "日");
  EXPECT_THAT(*(*tokenizer)->Encode(" a"), ElementsAre(256));
}

TEST(TokenizerCreateTest, TokensOfEachTypeAreFoundAndHidden) {
  Fields fields;
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddUint32("tokenizer.ggml.bos_token_id", 257);
    builder->AddUint32("tokenizer.ggml.eot_token_id", 97);
    builder->AddBool("tokenizer.ggml.add_bos_token", true);
  };
  const auto created = fields.Create();
  ASSERT_TRUE(created.ok()) << created.status();
  const Tokenizer& tokenizer = **created;
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(97, 257));  // the eot id, "<|end|>" by name
  EXPECT_THAT(*tokenizer.Encode(" a[tool]<|end|>"), ElementsAre(257, 256, 258, 257));
  // User-defined tokens are never cut; control tokens only count where they may be parsed.
  const auto plain =
      tokenizer.Encode("[tool]<|end|>", {.parse_special = false, .add_special = false});
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->front(), 258);
  EXPECT_EQ(plain->size(), 1 + std::string("<|end|>").size());
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{258, 257, 256}, true), "[tool] a");
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{258, 257, 256}, false), "[tool]<|end|> a");
}

// Whoever tells calls and thoughts apart has to see them. Prompts are encoded as the file says.
TEST(TokenizerCreateTest, TagsOfAnswersAreNotHidden) {
  Fields fields;
  fields.tokens.insert(
      fields.tokens.end(),
      {"<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<tool_calls>",
       "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>"});
  fields.types.insert(fields.types.end(), 11, 3);
  const auto created = fields.Create();
  ASSERT_TRUE(created.ok()) << created.status();
  const Tokenizer& tokenizer = **created;
  const auto ids = tokenizer.Encode("<tool_call>a</tool_call><think></think><|python_tag|>");
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(259, 'a', 260, 261, 262, 263));
  EXPECT_EQ(tokenizer.Decode(*ids, true), "<tool_call>a</tool_call><think></think><|python_tag|>");
  for (TokenId id = 265; id < 270; ++id) EXPECT_FALSE(tokenizer.IsSpecial(id)) << id;
  EXPECT_TRUE(tokenizer.IsSpecial(257));
  EXPECT_TRUE(tokenizer.IsSpecial(264));
  EXPECT_EQ(tokenizer.Encode("<think>", {.parse_special = false})->size(), 7u);
}

TEST(TokenizerCreateTest, ABosThatIsNotAskedForIsNotAdded) {
  Fields fields;
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddUint32("tokenizer.ggml.bos_token_id", 257);
  };
  const auto tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 257);
  EXPECT_THAT(*(*tokenizer)->Encode("b"), ElementsAre('b'));
}

TEST(TokenizerCreateTest, WhatTheNameOfThePreTokenizerSays) {
  Fields fields;
  fields.pre = "llama-bpe";
  fields.more = [](testing::GgufBuilder* builder) {
    builder->AddUint32("tokenizer.ggml.bos_token_id", 257);
    builder->AddUint32("tokenizer.ggml.eos_token_id", 256);
    builder->AddBool("tokenizer.ggml.add_eos_token", true);
  };
  fields.tokens.push_back("Ġab");  // no merge makes it: only ignore_merges finds it
  fields.types.push_back(1);
  auto tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode(" ab a"), ElementsAre(257, 259, 256, 256));
  fields.pre = "qwen2";  // NFC, and no bos unless the file asks for it
  tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("e\u0301", {.add_special = false}), ElementsAre(0xc3, 0xa9));
  EXPECT_THAT(*(*tokenizer)->Encode(" ab"), ElementsAre(256, 'b', 256));
}

TEST(TokenizerCreateTest, AByteWithoutATokenVanishes) {
  Fields fields;
  fields.tokens[0x01] = "(gone)";
  const auto tokenizer = fields.Create();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // As in the tokenizers library, what stood around it may merge.
  EXPECT_THAT(*(*tokenizer)->Encode("x\x01y"), ElementsAre('x', 'y'));
  EXPECT_THAT(*(*tokenizer)->Encode("\x01"), ElementsAre());
  EXPECT_THAT(*(*tokenizer)->Encode(""), ElementsAre());
}

TEST(TokenizerCreateTest, RefusesWhatItDoesNotKnow) {
  Fields fields;
  fields.model = "llama";
  ExpectRefused(fields, "tokenizer.ggml.scores must be an array of 259 floats");
  fields.model = "t5";
  ExpectRefused(fields,
                "tokenizer.ggml.model is 't5', which is not supported; known: gemma4, gpt2, llama");
  fields.model = "";
  ExpectRefused(fields, "tokenizer.ggml.model");
  fields = Fields();
  fields.pre = "viking";
  ExpectRefused(fields,
                "tokenizer.ggml.pre is 'viking', which is not supported; known: command-r, ");
  fields.pre = "";
  ExpectRefused(fields, "tokenizer.ggml.pre");
}

TEST(TokenizerCreateTest, RefusesBrokenVocabularies) {
  Fields fields;
  fields.types.pop_back();
  ExpectRefused(fields, "tokenizer.ggml.token_type has 258 entries for 259 tokens");
  fields = Fields();
  fields.types[7] = 9;
  ExpectRefused(fields, "tokenizer.ggml.token_type[7] is 9");
  fields = Fields();
  fields.tokens['q'] = "(no q)";
  ExpectRefused(fields, "tokenizer.ggml.tokens has no token for 'q'");
  fields = Fields();
  fields.tokens[257] = std::string(2000, 'x');
  ExpectRefused(fields, "tokenizer.ggml.tokens[257]: a special token has 2000 bytes");
  fields = Fields();
  fields.tokens.clear();
  fields.types.clear();
  ExpectRefused(fields, "tokenizer.ggml.tokens must be an array");
}

TEST(TokenizerCreateTest, RefusesMergesThatLeadOutOfTheVocabulary) {
  for (const char* merge : {"Ġ", "Ġ ", " ", "", "b c", "Ġ xyz", "nope a", "Ġ a b"}) {
    Fields fields;
    fields.merges = {"Ġ a", merge};
    ExpectRefused(fields, "tokenizer.ggml.merges[1]");
  }
}

TEST(TokenizerCreateTest, RefusesIdsOutOfRange) {
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    Fields fields;
    fields.more = [&](testing::GgufBuilder* builder) { builder->AddUint32(key, 259); };
    ExpectRefused(fields, std::string(key) + " is 259, but there are only 259 tokens");
    fields.more = [&](testing::GgufBuilder* builder) { builder->AddString(key, "x"); };
    ExpectRefused(fields, key);
  }
}

}  // namespace
}  // namespace flotilla
