// What `flotilla bench offline` sends, and what it makes of the answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "boost/json.hpp"
#include "deploy/launcher/offline/offline_stats.h"
#include "deploy/launcher/private_cluster.h"
#include "deploy/launcher/workload/nearest_rank.h"
#include "deploy/launcher/workload/random_workload.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

TEST(LengthRangeTest, ReadsARangeOrANumber) {
  const auto range = ParseLengthRange("--input-len", "100:1024");
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(range->min, 100u);
  EXPECT_EQ(range->max, 1024u);
  EXPECT_EQ(ParseLengthRange("--input-len", "7")->min, 7u);
  EXPECT_EQ(ParseLengthRange("--input-len", "7")->max, 7u);
}

TEST(LengthRangeTest, NamesTheFlagOfWhatIsNone) {
  for (const char* text :
       {"", ":", "5:", ":5", "0", "0:4", "6:5", "a:b", "1:2:3", "-1:4", " 1:2", "4294967296"}) {
    const auto range = ParseLengthRange("--output-len", text);
    ASSERT_FALSE(range.ok()) << text;
    EXPECT_THAT(std::string(range.status().message()), HasSubstr("--output-len"));
  }
}

RandomWorkload Workload() {
  RandomWorkload workload;
  workload.requests = 400;
  workload.input_len = {10, 14};
  workload.output_len = {3, 4};
  workload.seed = 5;
  return workload;
}

TEST(RandomWorkloadTest, DrawsLengthsAndTokensFromTheWholeRange) {
  const auto requests = MakeRandomRequests(Workload(), 50, 18);
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 400u);
  std::set<size_t> inputs;
  std::set<uint32_t> outputs;
  std::set<int32_t> ids;
  for (const RandomRequest& request : *requests) {
    inputs.insert(request.prompt.size());
    outputs.insert(request.output_len);
    ids.insert(request.prompt.begin(), request.prompt.end());
  }
  EXPECT_EQ(inputs, (std::set<size_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(outputs, (std::set<uint32_t>{3, 4}));
  EXPECT_EQ(ids.size(), 50u);
  EXPECT_EQ(*ids.begin(), 0);
  EXPECT_EQ(*ids.rbegin(), 49);
}

TEST(RandomWorkloadTest, TheSeedDecidesAll) {
  const auto first = MakeRandomRequests(Workload(), 50, 18);
  const auto again = MakeRandomRequests(Workload(), 50, 18);
  RandomWorkload other = Workload();
  other.seed = 6;
  const auto different = MakeRandomRequests(other, 50, 18);
  EXPECT_EQ((*first)[7].prompt, (*again)[7].prompt);
  EXPECT_NE((*first)[7].prompt, (*different)[7].prompt);
}

TEST(RandomWorkloadTest, RefusesWhatTheContextCantHold) {
  EXPECT_TRUE(MakeRandomRequests(Workload(), 50, 18).ok());
  const auto requests = MakeRandomRequests(Workload(), 50, 17);
  ASSERT_FALSE(requests.ok());
  EXPECT_THAT(std::string(requests.status().message()), HasSubstr("--input-len"));
}

TEST(OfflineStatsTest, FiguresOfTwoRequests) {
  constexpr int64_t kStart = 1'000'000'000;
  OfflineStats stats(2, kStart);
  const auto at = [](double seconds) { return kStart + static_cast<int64_t>(seconds * 1e9); };
  stats.OnLoad(2, 75, 100);
  stats.OnTokens(0, 1, at(0.5));
  stats.OnTokens(1, 1, at(1.5));
  stats.OnTokens(0, 2, at(1.0));  // two tokens after half a second: 0.25 s each
  stats.OnTokens(0, 0, at(1.0));
  stats.OnEnd(10, 0, at(1.0));
  stats.OnLoad(1, 60, 100);
  stats.OnTokens(1, 1, at(2.0));
  stats.OnEnd(6, 4, at(2.0));
  EXPECT_EQ(stats.finished(), 2u);
  EXPECT_EQ(stats.tokens_of(0), 3u);
  EXPECT_EQ(stats.tokens_of(1), 2u);
  const boost::json::object figures = stats.Figures();
  const auto number = [&](const char* name) { return figures.at(name).to_number<double>(); };
  EXPECT_EQ(number("requests"), 2);
  EXPECT_EQ(number("prompt_tokens"), 16);
  EXPECT_EQ(number("cached_tokens"), 4);
  EXPECT_EQ(number("output_tokens"), 5);
  EXPECT_DOUBLE_EQ(number("seconds"), 2);
  EXPECT_DOUBLE_EQ(number("output_tokens_per_second"), 2.5);
  EXPECT_DOUBLE_EQ(number("total_tokens_per_second"), 10.5);
  EXPECT_DOUBLE_EQ(number("max_kv_usage"), 0.4);
  EXPECT_EQ(number("max_running_requests"), 2);
  const auto& ttft = figures.at("time_to_first_token_seconds").as_object();
  EXPECT_DOUBLE_EQ(ttft.at("p50").as_double(), 0.5);
  EXPECT_DOUBLE_EQ(ttft.at("p99").as_double(), 1.5);
  const auto& gaps = figures.at("inter_token_latency_seconds").as_object();
  EXPECT_DOUBLE_EQ(gaps.at("p50").as_double(), 0.25);
  EXPECT_DOUBLE_EQ(gaps.at("p99").as_double(), 0.5);
}

TEST(NearestRankTest, TheSmallestThatEnoughReach) {
  EXPECT_EQ(NearestRank({}, 0.5), 0);
  EXPECT_EQ(NearestRank({4}, 0.99), 4);
  EXPECT_EQ(NearestRank({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(NearestRank({4, 1, 3, 2}, 0.51), 3);
  std::vector<int64_t> hundred;
  for (int64_t i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(NearestRank(hundred, 0.99), 99);
}

TEST(ReadyLineTest, FindsItsFields) {
  const std::string line = "ready http=http://127.0.0.1:80 grpc=127.0.0.1:81 metrics=http://x/m";
  EXPECT_EQ(FieldOfReadyLine(line, "http"), "http://127.0.0.1:80");
  EXPECT_EQ(FieldOfReadyLine(line, "grpc"), "127.0.0.1:81");
  EXPECT_EQ(FieldOfReadyLine(line, "metrics"), "http://x/m");
  EXPECT_EQ(FieldOfReadyLine("ready grpc=127.0.0.1:81 metrics=m", "http"), "");
  EXPECT_EQ(FieldOfReadyLine("[worker] not ready grpc=1", "grpc"), "");
}

}  // namespace
}  // namespace flotilla
