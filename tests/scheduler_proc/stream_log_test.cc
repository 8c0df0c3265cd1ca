#include "scheduler_proc/front/stream_log.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace flotilla {
namespace {

v1::Delta Piece(std::vector<int32_t> tokens, const std::string& text, bool logprobs = false) {
  v1::Delta delta;
  v1::ChoiceDelta* choice = delta.add_choices();
  choice->set_text(text);
  for (int32_t token : tokens) {
    choice->add_token_ids(token);
    if (logprobs) choice->add_logprobs()->set_token_id(token);
  }
  return delta;
}

v1::Delta Last() {
  v1::Delta delta = Piece({}, "!");
  delta.mutable_choices(0)->set_finish_reason(v1::FINISH_REASON_LENGTH);
  delta.mutable_usage()->set_completion_tokens(4);
  delta.set_last(true);
  return delta;
}

std::vector<int32_t> Tokens(const v1::Delta& delta) {
  return {delta.choices(0).token_ids().begin(), delta.choices(0).token_ids().end()};
}

TEST(StreamLog, UnsentPiecesMerge) {
  StreamLog log(7, 0);
  EXPECT_FALSE(log.HasUnsent());
  log.Append(Piece({1}, "a"));
  log.Append(Piece({2, 3}, "bc"));
  v1::Delta delta;
  log.Take(1 << 20, &delta);
  EXPECT_EQ(delta.stream_id(), 7u);
  EXPECT_EQ(Tokens(delta), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(delta.choices(0).text(), "abc");
  EXPECT_FALSE(delta.last());
  EXPECT_FALSE(log.HasUnsent());
  EXPECT_EQ(log.unsent_bytes(), 0u);
  log.Append(Last());
  v1::Delta end;
  log.Take(1 << 20, &end);
  EXPECT_TRUE(end.last());
  EXPECT_EQ(end.choices(0).text(), "!");
  EXPECT_EQ(end.usage().completion_tokens(), 4);
  EXPECT_TRUE(log.last_sent());
}

TEST(StreamLog, PromptLogprobsTravelWithTheFirstTokenAndRewindByCount) {
  StreamLog log(1, 0);
  v1::Delta first = Piece({1}, "a");
  for (int i = 0; i < 5; ++i) first.add_prompt_logprobs()->set_token_id(i);
  log.Append(std::move(first));
  v1::Delta delta;
  log.Take(1 << 20, &delta);
  EXPECT_EQ(delta.prompt_logprobs_size(), 5);
  log.Append(Piece({2}, "b"));
  ASSERT_TRUE(log.Rewind(1, 3));
  v1::Delta rest;
  log.Take(1 << 20, &rest);
  EXPECT_EQ(rest.prompt_logprobs_size(), 2);
  EXPECT_EQ(rest.prompt_logprobs(0).token_id(), 3);
  EXPECT_EQ(Tokens(rest), (std::vector<int32_t>{2}));
}

TEST(StreamLog, AnEmbeddingComesWithTheEndAndAgainAfterARewind) {
  StreamLog log(1, 0);
  v1::Delta end;
  for (int i = 0; i < 1000; ++i) end.add_embedding(static_cast<float>(i));
  end.set_last(true);
  EXPECT_GE(log.Append(std::move(end)), 4000u);
  EXPECT_GE(log.unsent_bytes(), 4000u);
  for (int times = 0; times < 2; ++times) {
    v1::Delta delta;
    log.Take(1 << 20, &delta);
    EXPECT_TRUE(delta.last());
    ASSERT_EQ(delta.embedding_size(), 1000);
    EXPECT_EQ(delta.embedding(999), 999);
    EXPECT_EQ(log.unsent_bytes(), 0u);
    ASSERT_TRUE(log.Rewind(0, 0));
    EXPECT_GE(log.unsent_bytes(), 4000u);
  }
}

TEST(StreamLog, OffsetsCountResumedTokens) {
  StreamLog log(1, 10);
  log.Append(Piece({1}, "a"));
  log.Append(Piece({2}, "b"));
  EXPECT_FALSE(log.Rewind(9, 0));
  EXPECT_FALSE(log.Rewind(13, 0));
  ASSERT_TRUE(log.Rewind(11, 0));
  v1::Delta delta;
  log.Take(1 << 20, &delta);
  EXPECT_EQ(Tokens(delta), (std::vector<int32_t>{2}));
}

// Of its tokens only the last one's text is known: whoever goes on elsewhere from its midst would
// say that it has tokens without their text.
TEST(StreamLog, APieceIsNotDivided) {
  StreamLog log(1, 0);
  log.Append(Piece({1}, "x", true));
  log.Append(Piece({2, 3, 4}, "abc", true));
  log.Append(Piece({5}, "y", true));
  const std::vector<std::pair<std::vector<int32_t>, std::string>> expected = {
      {{1}, "x"}, {{2, 3, 4}, "abc"}, {{5}, "y"}};
  for (const auto& [tokens, text] : expected) {
    v1::Delta delta;
    log.Take(/*max_bytes=*/1, &delta);
    EXPECT_EQ(Tokens(delta), tokens);
    EXPECT_EQ(delta.choices(0).text(), text);
    ASSERT_EQ(delta.choices(0).logprobs_size(), static_cast<int>(tokens.size()));
    EXPECT_EQ(delta.choices(0).logprobs(0).token_id(), tokens[0]);
  }
  EXPECT_FALSE(log.HasUnsent());
  EXPECT_EQ(log.unsent_bytes(), 0u);
}

// A long answer's memory does not grow by them for ever; who lacks the older ones is told so.
TEST(StreamLog, OfSentLogprobsTheLastOnesAreKept) {
  constexpr uint32_t kTokens = 4000;
  StreamLog log(1, 0);
  v1::Delta delta;
  for (uint32_t i = 0; i < kTokens; ++i) {
    v1::Delta piece = Piece({static_cast<int32_t>(i)}, "x", true);
    piece.mutable_choices(0)->mutable_logprobs(0)->set_token(std::string(1000, 'p'));
    log.Append(std::move(piece));
    if (i % 10 == 9) log.Take(1 << 20, &delta);
  }
  EXPECT_EQ(log.unsent_bytes(), 0u);
  EXPECT_LT(log.kept_bytes(), StreamLog::kSentLogprobBytes + kTokens * 100);
  EXPECT_FALSE(log.Rewind(0, 0));
  EXPECT_FALSE(log.Has(kTokens - 300, 0));
  EXPECT_FALSE(log.HasUnsent()) << "it is as it was";
  ASSERT_TRUE(log.Rewind(kTokens - 200, 0));
  v1::Delta again;
  log.Take(1 << 20, &again);
  ASSERT_EQ(again.choices(0).logprobs_size(), 200);
  for (const v1::TokenLogprobs& entry : again.choices(0).logprobs()) {
    EXPECT_EQ(entry.token().size(), 1000u);
  }
  ASSERT_TRUE(log.Rewind(kTokens, 0));
  EXPECT_FALSE(log.HasUnsent());
}

// Whatever is appended, taken and rewound: what the consumer has is a prefix, and in the end all.
TEST(StreamLog, RandomTakesAndRewindsLoseNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    StreamLog log(1, 0);
    std::vector<int32_t> all, have;
    std::string text, have_text;
    std::vector<std::string> text_after{""};  // by number of tokens the consumer has
    std::vector<size_t> cuts{0};
    bool done = false, appended_last = false;
    int next = 0;
    while (!done) {
      switch (random() % 4) {
        case 0:
          if (next < 40) {
            std::vector<int32_t> ids;
            for (uint32_t n = 1 + random() % 3; n > 0; --n) ids.push_back(next++);
            const std::string piece(random() % 6, static_cast<char>('a' + next % 26));
            all.insert(all.end(), ids.begin(), ids.end());
            text += piece;
            log.Append(Piece(ids, piece, true));
          } else if (!appended_last) {
            appended_last = true;
            text += "!";
            log.Append(Last());
          }
          break;
        case 1:
        case 2:
          if (log.HasUnsent()) {
            v1::Delta delta;
            const size_t before = log.unsent_bytes();
            log.Take(1 + random() % 60, &delta);
            EXPECT_LT(log.unsent_bytes(), before);
            for (int32_t id : Tokens(delta)) have.push_back(id);
            EXPECT_EQ(delta.choices(0).logprobs_size(), delta.choices(0).token_ids_size());
            have_text += delta.choices(0).text();
            cuts.push_back(have.size());
            text_after.push_back(have_text);
            done = delta.last();
          }
          break;
        case 3: {  // the connection breaks; the consumer has a prefix of the frames
          const size_t kept = random() % cuts.size();
          cuts.resize(kept + 1);
          text_after.resize(kept + 1);
          have.resize(cuts[kept]);
          have_text = text_after[kept];
          ASSERT_TRUE(log.Rewind(static_cast<uint32_t>(have.size()), 0));
          break;
        }
      }
    }
    EXPECT_EQ(have, all);
    EXPECT_EQ(have_text, text);
    EXPECT_EQ(log.unsent_bytes(), 0u);
  }
}

}  // namespace
}  // namespace flotilla
