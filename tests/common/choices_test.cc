#include "common/rpc/choices.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "common/base/status.h"

namespace flotilla {
namespace {

v1::GenerateRequest Request(int32_t n, int32_t best_of) {
  v1::GenerateRequest request;
  request.mutable_sampling()->set_n(n);
  request.mutable_sampling()->set_best_of(best_of);
  request.mutable_sampling()->set_seed(42);
  return request;
}

// A piece of one token, with its logprob.
v1::Delta Piece(int32_t token, float logprob) {
  v1::Delta delta;
  v1::ChoiceDelta* choice = delta.add_choices();
  choice->add_token_ids(token);
  choice->add_logprobs()->set_logprob(logprob);
  return delta;
}

v1::Delta Last(int32_t completion_tokens, int32_t cached_tokens = 0) {
  v1::Delta delta;
  delta.add_choices()->set_finish_reason(v1::FINISH_REASON_STOP);
  delta.mutable_usage()->set_prompt_tokens(10);
  delta.mutable_usage()->set_completion_tokens(completion_tokens);
  delta.mutable_usage()->set_cached_tokens(cached_tokens);
  delta.set_last(true);
  return delta;
}

// "index:token" of each piece, "index." for an end, "p" for prompt logprobs.
std::string Shown(const std::vector<v1::Delta>& deltas) {
  std::string out;
  for (const v1::Delta& delta : deltas) {
    if (delta.prompt_logprobs_size() > 0) out += "p ";
    for (const v1::ChoiceDelta& choice : delta.choices()) {
      StrAppend(&out, choice.index());
      if (choice.token_ids_size() > 0)
        StrAppend(&out, ":", choice.token_ids(0), " ");
      else
        out += ". ";
    }
  }
  return out;
}

TEST(ChoiceSeedTest, IsSplitMix64FromTheSeedOn) {
  EXPECT_EQ(ChoiceSeed(42, 0), 42u);
  // The first numbers of the reference implementation from state 0.
  EXPECT_EQ(ChoiceSeed(0, 1), 0xe220a8397b1dcdafu);
  EXPECT_EQ(ChoiceSeed(0, 2), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(ChoiceSeed(0, 3), 0x06c45d188009454fu);
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    for (size_t i = 0; i < 16; ++i) seeds.insert(ChoiceSeed(seed, i));
  }
  EXPECT_EQ(seeds.size(), 64u * 16u);
}

TEST(ChoicesOfTest, ReadsWhatIsAskedFor) {
  const ChoiceOptions none = ChoicesOf({});
  EXPECT_EQ(none.num_choices, 1u);
  EXPECT_EQ(none.num_candidates, 1u);
  EXPECT_FALSE(none.ranked() || none.hide_logprobs || none.prompt_first);

  v1::GenerateRequest request = Request(2, 5);
  EXPECT_EQ(ChoicesOf(request).num_candidates, 5u);
  EXPECT_TRUE(ChoicesOf(request).ranked());
  EXPECT_TRUE(ChoicesOf(request).hide_logprobs);
  request.mutable_output()->set_logprobs(3);
  EXPECT_FALSE(ChoicesOf(request).hide_logprobs);
  EXPECT_FALSE(ChoicesOf(request).prompt_first);
  request.mutable_output()->set_echo(true);
  EXPECT_TRUE(ChoicesOf(request).prompt_first);
  request.mutable_sampling()->clear_best_of();
  EXPECT_EQ(ChoicesOf(request).num_candidates, 2u);
}

TEST(ChoiceRequestTest, IsOneChoiceWithItsSeed) {
  v1::GenerateRequest request = Request(3, 4);
  request.mutable_output()->set_prompt_logprobs(2);
  for (size_t i = 0; i < 4; ++i) {
    const v1::GenerateRequest choice = ChoiceRequest(request, i);
    EXPECT_EQ(ChoicesOf(choice).num_candidates, 1u);
    EXPECT_EQ(choice.sampling().seed(), ChoiceSeed(42, i));
    EXPECT_EQ(choice.output().has_prompt_logprobs(), i == 0);
    EXPECT_TRUE(choice.output().has_logprobs()) << "to rank by";
    EXPECT_EQ(choice.output().logprobs(), 0);
  }
  request.mutable_sampling()->set_best_of(3);
  EXPECT_FALSE(ChoiceRequest(request, 2).output().has_logprobs());
  request.mutable_sampling()->set_n(16);
  request.mutable_sampling()->set_best_of(16);
  EXPECT_EQ(ChoiceRequest(request, 2).SerializeAsString(),
            ChoiceRequest(Request(3, 3), 2).SerializeAsString())
      << "a choice does not depend on n";
}

TEST(ChoiceMergerTest, OneChoicePassesWithoutUsage) {
  ChoiceMerger merger{ChoiceOptions()};
  std::vector<v1::Delta> out;
  v1::Delta last = Last(7, 3);
  last.mutable_timing()->set_finished_ns(9);
  last.add_prompt_logprobs();
  merger.Add(0, Piece(1, -1), &out);
  EXPECT_FALSE(merger.done());
  EXPECT_EQ(merger.timing(), nullptr);
  merger.Add(0, std::move(last), &out);
  EXPECT_EQ(Shown(out), "0:1 p 0. ");
  EXPECT_FALSE(out[1].has_usage());
  ASSERT_TRUE(merger.done());
  EXPECT_EQ(merger.usage().completion_tokens(), 7);
  EXPECT_EQ(merger.usage().cached_tokens(), 3);
  EXPECT_EQ(merger.timing()->finished_ns(), 9);
}

TEST(ChoiceMergerTest, SeveralGetTheirIndexAndOneUsage) {
  ChoiceMerger merger(ChoicesOf(Request(3, 3)));
  std::vector<v1::Delta> out;
  merger.Add(1, Piece(5, -1), &out);
  merger.Add(0, Piece(6, -1), &out);
  merger.Add(2, Last(1, 8), &out);
  merger.Add(1, Last(4, 8), &out);
  EXPECT_FALSE(merger.done());
  merger.Add(0, Last(9, 2), &out);
  EXPECT_EQ(Shown(out), "1:5 0:6 2. 1. 0. ");
  EXPECT_TRUE(merger.done());
  EXPECT_EQ(merger.usage().prompt_tokens(), 10) << "once";
  EXPECT_EQ(merger.usage().completion_tokens(), 14);
  EXPECT_EQ(merger.usage().cached_tokens(), 2) << "what nobody computed";
}

TEST(ChoiceMergerTest, ThePromptComesFirstIfItIsWanted) {
  v1::GenerateRequest request = Request(2, 2);
  request.mutable_output()->set_prompt_logprobs(0);
  ChoiceMerger merger(ChoicesOf(request));
  std::vector<v1::Delta> out;
  merger.Add(1, Piece(5, -1), &out);
  EXPECT_EQ(Shown(out), "") << "candidate 0 has not told the prompt's yet";
  v1::Delta prompt;
  prompt.add_prompt_logprobs();
  merger.Add(0, v1::Delta(prompt), &out);
  EXPECT_EQ(Shown(out), "p ");
  v1::Delta first = Piece(6, -1);
  first.add_prompt_logprobs();
  merger.Add(0, std::move(first), &out);
  EXPECT_EQ(Shown(out), "p p 0:6 1:5 ");
  v1::Delta large;
  large.set_large_result_id(3);
  out.clear();
  merger.Add(0, std::move(large), &out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].large_result_id(), 3u);
}

TEST(ChoiceMergerTest, TheBestByTheMeanAreAnsweredAtTheEnd) {
  ChoiceMerger merger(ChoicesOf(Request(2, 5)));
  std::vector<v1::Delta> out;
  merger.Add(0, Piece(10, -1), &out);
  merger.Add(0, Piece(11, -3), &out);  // mean -2, sum -4
  merger.Add(1, Piece(20, -2.5f), &out);
  for (int i = 0; i < 4; ++i) merger.Add(2, Piece(30 + i, -1.5f), &out);  // best mean, least sum
  merger.Add(3, Piece(40, -2), &out);                                     // as good as 0, but later
  for (size_t i : {4, 3, 2, 1}) merger.Add(i, Last(1), &out);
  EXPECT_TRUE(out.empty());
  merger.Add(0, Last(2), &out);
  EXPECT_EQ(Shown(out), "0:30 0:31 0:32 0:33 0. 1:10 1:11 1. ");
  for (const v1::Delta& delta : out)
    EXPECT_EQ(delta.choices(0).logprobs_size(), 0) << "nobody asked for them";
  EXPECT_EQ(merger.usage().completion_tokens(), 6) << "those that are dropped too";
}

TEST(ChoiceMergerTest, WhatHasNoMeanComesLast) {
  v1::GenerateRequest request = Request(1, 3);
  request.mutable_output()->set_logprobs(0);
  ChoiceMerger merger(ChoicesOf(request));
  std::vector<v1::Delta> out;
  merger.Add(0, Last(0), &out);  // ended before its first token
  merger.Add(1, Piece(1, std::numeric_limits<float>::quiet_NaN()), &out);
  merger.Add(1, Last(1), &out);
  merger.Add(2, Piece(2, -100), &out);
  merger.Add(2, Last(1), &out);
  EXPECT_EQ(Shown(out), "0:2 0. ");
  EXPECT_EQ(out[0].choices(0).logprobs_size(), 1) << "asked for";
}

}  // namespace
}  // namespace flotilla
