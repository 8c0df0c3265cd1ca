#include "scheduler_proc/grammar/compile_frames.h"

#include <gtest/gtest.h>

#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

// Each prefix, and one byte more, is refused.
template <typename Parse>
void ExpectWholeFramesOnly(const std::string& frame, Parse parse) {
  for (size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(parse(frame.substr(0, size)).ok()) << size;
  EXPECT_FALSE(parse(StrCat(frame, "x")).ok());
}

TEST(CompileFramesTest, Vocabulary) {
  const VocabularyTokens tokens = testing::TestTokens();
  const std::string frame = BuildVocabulary(tokens);
  const auto parsed = ParseVocabulary(frame);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->vocab_size, tokens.vocab_size);
  EXPECT_EQ(parsed->tokens, tokens.tokens);
  EXPECT_EQ(parsed->eos_ids, tokens.eos_ids);
  ExpectWholeFramesOnly(frame, ParseVocabulary);
  VocabularyTokens wrong = tokens;
  wrong.vocab_size = 3;  // fewer than there are tokens
  EXPECT_FALSE(ParseVocabulary(BuildVocabulary(wrong)).ok());
}

TEST(CompileFramesTest, RequestAndReply) {
  const CompileRequest request = {{GrammarKind::kEbnf, "root ::= \"a\""}, 1900, 1 << 20, 1 << 16};
  const std::string frame = BuildCompileRequest(request);
  const auto parsed = ParseCompileRequest(frame);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->spec, request.spec);
  EXPECT_EQ(parsed->time_ms, 1900u);
  EXPECT_EQ(parsed->memory_bytes, 1u << 20);
  EXPECT_EQ(parsed->compiled_bytes, 1u << 16);
  ExpectWholeFramesOnly(frame, ParseCompileRequest);
  EXPECT_FALSE(ParseCompileRequest(StrCat("\xff", frame.substr(1))).ok());  // no such kind

  const std::string good = BuildCompileReply({OkStatus(), "json"});
  EXPECT_EQ(ParseCompileReply(good)->compiled, "json");
  ExpectWholeFramesOnly(good, ParseCompileReply);
  const std::string bad = BuildCompileReply({absl::InvalidArgumentError("why"), "json"});
  EXPECT_EQ(ParseCompileReply(bad)->status, absl::InvalidArgumentError("why"));
}

}  // namespace
}  // namespace flotilla
