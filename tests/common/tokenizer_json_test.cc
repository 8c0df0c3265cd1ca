// tokenizer.json: small files written here, what is taken and what is refused by name. The live
// test compares real vocabularies with the tokenizers library.
#include "common/text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "common/text/byte_level.h"

namespace flotilla {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Byte level: ids 0 … 255 the bytes, 256 "Ġa", then the added tokens.
json::object ByteLevelFile() {
  json::object vocab;
  for (int b = 0; b < 256; ++b) {
    std::string written;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(b)), &written);
    vocab[written] = b;
  }
  vocab["Ġa"] = 256;
  json::value file = json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 257, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 258, "content": "[tool]", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": true, "special": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}]},
    "post_processor": {"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}}],
       "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [257], "tokens": ["<|end|>"]}}}]},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
              "merges": [["Ġ", "a"]]}})");
  file.as_object()["model"].as_object()["vocab"] = vocab;
  return file.as_object();
}

// Characters: 0 <unk>, 1 <s>, 2 … 257 the bytes, then ▁ a b ▁a (258 … 261).
json::object CharactersFile() {
  json::object vocab = {{"<unk>", 0}, {"<s>", 1}};
  const std::string digits = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b)
    vocab[StrCat("<0x", digits.substr(b / 16, 1), digits.substr(b % 16, 1), ">")] = 2 + b;
  for (const char* piece : {"▁", "a", "b", "▁a"}) vocab[piece] = vocab.size();
  json::value file = json::parse(R"({
    "added_tokens": [
      {"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "merges": ["▁ a"]}})");
  file.as_object()["model"].as_object()["vocab"] = vocab;
  return file.as_object();
}

std::unique_ptr<Tokenizer> Create(const json::object& file) {
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizerFromJson(json::serialize(file));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}

// Sets the value at a JSON pointer, whose parent must be there.
json::object With(json::object file, const std::string& pointer, const std::string& text) {
  json::value value(std::move(file));
  const size_t slash = pointer.rfind('/');
  const std::string name = pointer.substr(slash + 1);
  json::error_code error;
  json::value* parent = slash == 0 ? &value : value.find_pointer(pointer.substr(0, slash), error);
  EXPECT_NE(parent, nullptr) << pointer;
  if (parent->is_array()) {
    parent->as_array().at(std::stoul(name)) = json::parse(text);
  } else {
    parent->as_object()[name] = json::parse(text);
  }
  return value.as_object();
}

void ExpectRefused(const json::object& file, const std::string& message) {
  const auto tokenizer = CreateTokenizerFromJson(json::serialize(file));
  ASSERT_FALSE(tokenizer.ok()) << message;
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(tokenizer.status().ToString(), HasSubstr(message));
}

TEST(TokenizerJsonTest, ByteLevel) {
  const auto tokenizer = Create(ByteLevelFile());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 259u);
  EXPECT_EQ(tokenizer->bos_id(), 257);
  EXPECT_THAT(tokenizer->eos_ids(), ElementsAre(257));
  EXPECT_THAT(*tokenizer->Encode(" a[tool]12<|end|>"), ElementsAre(257, 256, 258, '1', '2', 257));
  EXPECT_THAT(*tokenizer->Encode("e\u0301", {.add_special = false}), ElementsAre(0xc3, 0xa9));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{257, 256, 258}, true), " a[tool]");
  EXPECT_FALSE(tokenizer->strips_leading_space());
}

TEST(TokenizerJsonTest, TagsOfAnswersAreNotHidden) {
  json::object file = ByteLevelFile();
  int id = 259;
  for (const char* tag : {"<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"})
    file["added_tokens"].as_array().push_back(
        {{"id", id++}, {"content", tag}, {"special", true}, {"normalized", false}});
  const auto tokenizer = Create(file);
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "<think>a</think><tool_call></tool_call><|python_tag|>";
  const auto ids = tokenizer->Encode(text, {.add_special = false});
  EXPECT_THAT(*ids, ElementsAre(261, 'a', 262, 259, 260, 263));
  EXPECT_EQ(tokenizer->Decode(*ids, true), text);
  EXPECT_TRUE(tokenizer->IsSpecial(257));
}

TEST(TokenizerJsonTest, Characters) {
  const auto tokenizer = Create(CharactersFile());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("a b\n"), ElementsAre(261, 258, 260, 2 + '\n'));
  EXPECT_THAT(*tokenizer->Encode("<s>a"), ElementsAre(1, 261));
  const std::vector<TokenId> ids = {261, 258, 260, 2 + 0xc3, 2 + 0xa9};
  EXPECT_EQ(tokenizer->Decode(ids, true), "a b\u00e9");
  EXPECT_TRUE(tokenizer->IsSpecial(0));
}

TEST(TokenizerJsonTest, MetaspaceInsteadOfANormalizer) {
  json::object file = With(CharactersFile(), "/normalizer", "null");
  file = With(std::move(file), "/pre_tokenizer",
              R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                  "split": false})");
  auto tokenizer = Create(file);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(*tokenizer->Encode("a<s>a a"), ElementsAre(261, 1, 259, 261));
  EXPECT_THAT(*tokenizer->Encode(" a"), ElementsAre(261));
  tokenizer = Create(With(file, "/pre_tokenizer/prepend_scheme", R"("never")"));
  EXPECT_THAT(*tokenizer->Encode("a a"), ElementsAre(259, 261));
  // As files of before 2024 have it: in each part, and pieces begin at ▁.
  tokenizer = Create(With(
      file, "/pre_tokenizer",
      R"({"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": true})"));
  EXPECT_THAT(*tokenizer->Encode("a<s>a"), ElementsAre(261, 1, 261));
}

TEST(TokenizerJsonTest, AddedTokensStripAndIdsMayHaveHoles) {
  json::object file = ByteLevelFile();
  file = With(std::move(file), "/added_tokens/0/rstrip", "true");
  file = With(std::move(file), "/added_tokens/1/id", "300");
  const auto tokenizer = Create(file);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 301u);
  EXPECT_THAT(*tokenizer->Encode("<|end|> \n[tool]", {.add_special = false}),
              ElementsAre(257, 300));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{299, 300}, false), "[tool]");
}

// Gemma has runs of spaces among its added tokens.
TEST(TokenizerJsonTest, AddedTokensWriteSpacesTooWhereTheDecoderReplaces) {
  const json::object file =
      With(CharactersFile(), "/added_tokens/1",
           R"({"id": 300, "content": "▁▁", "special": false, "normalized": false})");
  const auto tokenizer = Create(file);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{261, 300, 261}, true), "a   a");
}

TEST(TokenizerJsonTest, RefusesComponentsByName) {
  const json::object bytes = ByteLevelFile();
  const json::object chars = CharactersFile();
  ExpectRefused(With(bytes, "/model/type", R"("Unigram")"),
                "model has the type 'Unigram', which is not supported; known: BPE");
  ExpectRefused(With(bytes, "/normalizer/type", R"("NFKC")"),
                "normalizer has the type 'NFKC', which is not supported; known: NFC, Prepend");
  ExpectRefused(With(bytes, "/pre_tokenizer/pretokenizers/0/type", R"("Whitespace")"),
                "pre_tokenizer.pretokenizers[0] has the type 'Whitespace'");
  ExpectRefused(With(bytes, "/pre_tokenizer/pretokenizers/1/add_prefix_space", "true"),
                "pre_tokenizer.pretokenizers[1].add_prefix_space is true");
  ExpectRefused(
      With(bytes, "/pre_tokenizer/pretokenizers/0",
           R"({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"})"),
      "is the regular expression '(a+)+$', which is not one of");
  ExpectRefused(With(bytes, "/pre_tokenizer/pretokenizers/0",
                     R"({"type": "Split", "pattern": {"Regex": "[\r\n]"}, "behavior": "Removed"})"),
                "has the behavior 'Removed'");
  ExpectRefused(With(bytes, "/pre_tokenizer/pretokenizers/0",
                     R"({"type": "Split", "pattern": {"String": "x"}, "behavior": "Isolated"})"),
                "splits at a String");
  ExpectRefused(With(bytes, "/decoder/type", R"("WordPiece")"), "decoder has the type 'WordPiece'");
  ExpectRefused(With(bytes, "/decoder", "null"), "decoder is not ByteLevel");
  ExpectRefused(With(chars, "/decoder", R"({"type": "ByteLevel"})"), "decoder is ByteLevel");
  ExpectRefused(With(chars, "/decoder/decoders/1/type", R"("Fuse")"), "has no ByteFallback");
  ExpectRefused(With(chars, "/decoder/decoders/3/start", "2"), "strips something else");
  ExpectRefused(With(chars, "/normalizer/normalizers/1/pattern", R"({"Regex": " "})"),
                "normalizer.normalizers[1].pattern is a regular expression");
  ExpectRefused(With(bytes, "/post_processor/processors/0/type", R"("BertProcessing")"),
                "post_processor.processors[0] has the type 'BertProcessing'");
  ExpectRefused(With(bytes, "/model/dropout", "0.1"), "model.dropout must be null");
  ExpectRefused(With(bytes, "/model/end_of_word_suffix", R"("</w>")"), "model.end_of_word_suffix");
  ExpectRefused(With(bytes, "/model/byte_fallback", "true"), "model.byte_fallback is true beside");
  ExpectRefused(With(chars, "/model/ignore_merges", "true"), "model.ignore_merges is true without");
  ExpectRefused(With(bytes, "/added_tokens/0/single_word", "true"), "added_tokens[0].single_word");
  const std::string metaspace = R"({"type": "Metaspace", "replacement": "▁", "split": false})";
  ExpectRefused(
      With(With(chars, "/normalizer", "null"), "/pre_tokenizer",
           StrCat(R"({"type": "Sequence", "pretokenizers": [)", metaspace, ",", metaspace, "]}")),
      "is a Metaspace after another pre-tokenizer");
}

TEST(TokenizerJsonTest, RefusesWhatIsBroken) {
  const json::object bytes = ByteLevelFile();
  ExpectRefused(With(bytes, "/model", "[]"), "model has the type ''");
  ExpectRefused(With(bytes, "/model/vocab", "[]"), "model.vocab must be an object");
  ExpectRefused(With(bytes, "/model/vocab", "{}"), "model.vocab must be an object of 1 to");
  ExpectRefused(With(bytes, "/model/vocab/a", "-1"), "model.vocab['a'] must be an integer");
  ExpectRefused(With(bytes, "/model/vocab/a", "5000000"), "model.vocab['a'] must be an integer");
  ExpectRefused(With(bytes, "/model/vocab/a", "98"), "gives the id 98 to '");
  ExpectRefused(With(bytes, "/model/merges", "{}"), "model.merges must be an array");
  for (const char* merge : {"7", R"("a")", R"(["a"])", R"(["a", 1])", R"("a b")", R"(["q", "x"])"})
    ExpectRefused(With(bytes, "/model/merges/0", merge), "model.merges[0]");
  ExpectRefused(With(bytes, "/model/unk_token", R"("<unk>")"), "model.unk_token is not in");
  ExpectRefused(With(bytes, "/added_tokens/0/id", "97"), "gives the id 97 to '<|end|>'");
  ExpectRefused(With(bytes, "/added_tokens/0/content", R"("a")"), "but model.vocab gives 'a'");
  ExpectRefused(With(bytes, "/post_processor/processors/1/special_tokens/<|end|>/ids/0", "259"),
                "special_tokens.<|end|>.ids[0] must be an integer from 0 to 258");
  ExpectRefused(With(bytes, "/post_processor/processors/1/single/1", R"({"SpecialToken": {}})"),
                "single[1].SpecialToken.id must be a string");
  json::object without_q = bytes;
  without_q["model"].as_object()["vocab"].as_object().erase("q");
  ExpectRefused(without_q, "model.vocab has no token for 'q'");
}

// `count` times `element`, with commas.
std::string Repeat(const std::string& element, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) StrAppend(&list, i == 0 ? "" : ", ", element);
  return list;
}

TEST(TokenizerJsonTest, ASmallFileCannotAskForMuch) {
  const json::object bytes = ByteLevelFile();
  const auto sequence = [](const char* name, const std::string& element, int count) {
    return StrCat(R"({"type": "Sequence", ")", std::string(name), R"(": [)", Repeat(element, count),
                  "]}");
  };
  const std::string prepend = R"({"type": "Prepend", "prepend": "x"})";
  Create(With(bytes, "/normalizer", sequence("normalizers", prepend, 16)));
  ExpectRefused(With(bytes, "/normalizer", sequence("normalizers", prepend, 17)),
                "normalizer.normalizers[16] is one step too many");
  const std::string replace =
      R"({"type": "Replace", "pattern": {"String": "x"}, "content": "xxxx"})";
  Create(With(bytes, "/normalizer", sequence("normalizers", replace, 2)));
  ExpectRefused(With(bytes, "/normalizer", sequence("normalizers", replace, 3)),
                "normalizer.normalizers[2] lets a text grow");
  const std::string digits = R"({"type": "Digits"})";
  ExpectRefused(With(bytes, "/pre_tokenizer", sequence("pretokenizers", digits, 1000)),
                "pre_tokenizer.pretokenizers[16] is one stage too many");
  ExpectRefused(With(bytes, "/post_processor/processors/1/special_tokens/<|end|>/ids",
                     StrCat("[", Repeat("257", 100), "]")),
                "special_tokens.<|end|>.ids[64] is one id too many");
  ExpectRefused(With(bytes, "/normalizer/type", StrCat(std::string(20, '['), std::string(20, ']'))),
                "normalizer.type must be a string");
  ExpectRefused(With(bytes, "/added_tokens/0/id", "4000000000"), "added_tokens[0].id must be");
}

TEST(TokenizerJsonTest, TheLastOfEqualKeysCounts) {
  std::string text = json::serialize(ByteLevelFile());
  const std::string field = R"("decoder":{)";
  ASSERT_NE(text.find(field), std::string::npos);
  text.replace(text.find(field), field.size(), R"("decoder":{"type":"WordPiece"},)" + field);
  EXPECT_TRUE(CreateTokenizerFromJson(text).ok());
}

TEST(TokenizerJsonTest, RefusesWhatIsNoJson) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1]"), std::string("{\"a\": \"\xff\"}"),
        std::string(R"({"model": {"vocab": {"\ud800": 1}}})"), std::string(100, '[')}) {
    const auto tokenizer = CreateTokenizerFromJson(text);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace flotilla
