#include "router/fleet/stream_progress.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

namespace flotilla {
namespace {

// What a replica would say from the first token on: a token and its text at each position, some of
// them without text, prompt logprobs before and a last piece behind.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
  std::string rest;  // with the end
};

Answer RandomAnswer(std::mt19937_64* random) {
  Answer answer;
  const size_t tokens = 1 + (*random)() % 12;
  for (size_t i = 0; i < tokens; ++i) {
    answer.ids.push_back(static_cast<int32_t>((*random)() % 1000));
    answer.texts.emplace_back((*random)() % 4, static_cast<char>('a' + (*random)() % 26));
  }
  answer.rest.assign((*random)() % 3, '!');
  return answer;
}

constexpr int kPromptLogprobs = 3;

// The pieces after `resume`, cut at random, each with logprobs; the prompt's logprobs first.
std::vector<v1::Delta> Pieces(const Answer& answer, size_t resumed, std::mt19937_64* random) {
  std::vector<v1::Delta> pieces;
  for (int i = 0; i < kPromptLogprobs; ++i) {
    if (pieces.empty() || (*random)() % 2 == 0) pieces.emplace_back();
    pieces.back().add_prompt_logprobs()->set_token_id(i);
  }
  for (size_t i = resumed; i < answer.ids.size(); ++i) {
    if (i == resumed || (*random)() % 2 == 0) pieces.emplace_back().add_choices();
    v1::ChoiceDelta* choice = pieces.back().mutable_choices(0);
    choice->add_token_ids(answer.ids[i]);
    choice->add_logprobs()->set_token_id(answer.ids[i]);
    choice->mutable_text()->append(answer.texts[i]);
  }
  if ((*random)() % 2 == 0) pieces.emplace_back().add_choices();  // the end comes alone
  pieces.back().mutable_choices(0)->mutable_text()->append(answer.rest);
  pieces.back().set_last(true);
  return pieces;
}

struct Client {
  std::vector<int32_t> ids, logprobs, prompt_logprobs;
  std::string text;

  void Take(const v1::Delta& delta) {
    for (const auto& entry : delta.prompt_logprobs()) prompt_logprobs.push_back(entry.token_id());
    for (const v1::ChoiceDelta& choice : delta.choices()) {
      ids.insert(ids.end(), choice.token_ids().begin(), choice.token_ids().end());
      for (const auto& entry : choice.logprobs()) logprobs.push_back(entry.token_id());
      text += choice.text();
    }
  }
};

TEST(StreamProgressTest, WhereverReplicasDieTheClientGetsTheAnswerOnce) {
  std::mt19937_64 random(7);
  size_t continued = 0;
  for (int round = 0; round < 3000; ++round) {
    const Answer answer = RandomAnswer(&random);
    StreamProgress progress;
    Client client;
    for (bool done = false; !done;) {
      const auto resume = progress.BeginAttempt();
      const size_t resumed = resume ? static_cast<size_t>(resume->output_ids_size()) : 0;
      ASSERT_LE(resumed, client.ids.size());
      ASSERT_LT(resumed, answer.ids.size()) << "a replica has a token to compute at least";
      continued += resumed > 0;
      EXPECT_EQ(progress.received_tokens(), resumed);
      if (resume) {
        EXPECT_TRUE(std::equal(resume->output_ids().begin(), resume->output_ids().end(),
                               answer.ids.begin()));
        size_t bytes = 0;
        for (size_t i = 0; i < resumed; ++i) bytes += answer.texts[i].size();
        EXPECT_EQ(resume->emitted_bytes(), bytes);
      }
      size_t received = resumed;
      for (v1::Delta& piece : Pieces(answer, resumed, &random)) {
        if (random() % 8 == 0) break;  // the replica dies
        done = piece.last();
        progress.OnReceived(piece);
        if (piece.choices_size() > 0)
          received += static_cast<size_t>(piece.choices(0).token_ids_size());
        EXPECT_EQ(progress.received_tokens(), received);
        ASSERT_TRUE(progress.Deliver(&piece).ok());
        client.Take(piece);
      }
    }
    std::string text = std::accumulate(answer.texts.begin(), answer.texts.end(), std::string());
    EXPECT_EQ(client.text, text + answer.rest);
    EXPECT_EQ(client.ids, answer.ids);
    EXPECT_EQ(client.logprobs, answer.ids);
    EXPECT_EQ(client.prompt_logprobs, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(progress.num_tokens(), answer.ids.size());
  }
  EXPECT_GT(continued, 300u);
}

v1::Delta Piece(std::vector<int32_t> ids, const std::string& text) {
  v1::Delta delta;
  v1::ChoiceDelta* choice = delta.add_choices();
  choice->mutable_token_ids()->Add(ids.begin(), ids.end());
  choice->set_text(text);
  return delta;
}

// The client has 1 2 3 with "abc"; the next replica begins at 3.
StreamProgress AfterThree() {
  StreamProgress progress;
  EXPECT_FALSE(progress.BeginAttempt().has_value());
  v1::Delta first = Piece({1, 2}, "ab"), second = Piece({3}, "c");
  EXPECT_TRUE(progress.Deliver(&first).ok());
  EXPECT_TRUE(progress.Deliver(&second).ok());
  const auto resume = progress.BeginAttempt();
  EXPECT_EQ(resume->output_ids_size(), 2);
  return progress;
}

TEST(StreamProgressTest, OnlyNewTokensAndTextPass) {
  StreamProgress progress = AfterThree();
  v1::Delta delta = Piece({3, 4}, "cd");
  ASSERT_TRUE(progress.Deliver(&delta).ok());
  EXPECT_EQ(delta.choices(0).text(), "d");
  ASSERT_EQ(delta.choices(0).token_ids_size(), 1);
  EXPECT_EQ(delta.choices(0).token_ids(0), 4);
  EXPECT_FALSE(IsEmpty(delta));
}

TEST(StreamProgressTest, WhatIsAllRepeatedIsEmpty) {
  StreamProgress progress = AfterThree();
  v1::Delta delta = Piece({3}, "c");
  ASSERT_TRUE(progress.Deliver(&delta).ok());
  EXPECT_TRUE(IsEmpty(delta));
  EXPECT_FALSE(IsEmpty(Piece({}, "x")));
  v1::Delta last = Piece({}, "");
  last.set_last(true);
  EXPECT_FALSE(IsEmpty(last));
}

TEST(StreamProgressTest, AnotherAnswerIsAnError) {
  for (const v1::Delta& wrong : {Piece({9}, "c"), Piece({3}, "")}) {
    StreamProgress progress = AfterThree();
    v1::Delta delta = wrong;
    EXPECT_TRUE(absl::IsInternal(progress.Deliver(&delta)));
  }
}

TEST(StreamProgressTest, AnAnswerThatEndsTooSoonIsAnError) {
  StreamProgress progress = AfterThree();
  v1::Delta delta = Piece({}, "");
  delta.set_last(true);
  EXPECT_TRUE(absl::IsInternal(progress.Deliver(&delta)));
}

TEST(StreamProgressTest, AnAnswerThatIsCutOffEndsWithWhatThereWas) {
  for (const v1::FinishReason reason : {v1::FINISH_REASON_DEADLINE, v1::FINISH_REASON_ABORT}) {
    StreamProgress progress = AfterThree();
    v1::Delta delta = Piece({}, "");
    delta.set_last(true);
    delta.mutable_choices(0)->set_finish_reason(reason);
    EXPECT_TRUE(progress.Deliver(&delta).ok());
    EXPECT_EQ(delta.usage().completion_tokens(), 3);
  }
}

}  // namespace
}  // namespace flotilla
