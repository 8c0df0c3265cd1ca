#include "deploy/launcher/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <sstream>

namespace flotilla {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

boost::json::object Fleet(int64_t now_ms, int64_t tokens) {
  return boost::json::parse(R"({"version":"0.1.0","draining":false,"now_unix_ms":)" +
                            std::to_string(now_ms) +
                            R"(,"requests_active":5,"requests_parked":2,"replicas":[
      {"index":0,"replica":"r0","model":"SmolLM2","state":"ready","circuit":"closed",
       "requests_active":5,"requests_running":4,"requests_waiting":1,"kv_pages_free":75,
       "kv_pages_total":100,"generated_tokens":)" +
                            std::to_string(tokens) +
                            R"(,"first_token_seconds":0.0123},
      {"index":1,"replica":"r1","model":"","state":"unreachable","circuit":"open"}],
    "requests":[{"request_id":"req_a\u001b[2J","outcome":"stop","prompt_tokens":7,
      "cached_tokens":3,"completion_tokens":9,"total_seconds":0.5,
      "timing":{"queue_seconds":0.001,"prefill_seconds":0.02,"decode_seconds":0.4}},
     {"request_id":"req_b","outcome":"abort","total_seconds":0.25,"timing":null}]})")
      .as_object();
}

TEST(TopScreenTest, ShowsReplicasRequestsAndRates) {
  const auto before = Fleet(1000, 100), now = Fleet(3000, 140);
  const std::string screen = TopScreen(now, &before, {24, 120});
  EXPECT_THAT(screen,
              HasSubstr("flotilla 0.1.0   2 replicas   5 requests active, 2 parked   20.0"));
  EXPECT_THAT(screen, ContainsRegex("r0 +SmolLM2 +ready +5 +4 +1 +25.0% +20.0 +12\n"));
  EXPECT_THAT(screen, ContainsRegex("r1 +circuit open +0 +0 +0 +0.0% +0.0 +0\n"));
  EXPECT_THAT(screen, ContainsRegex("req_a\\?.2J +stop +7 +3 +9 +1 +20 +400 +500\n"));
  EXPECT_THAT(screen, ContainsRegex("req_b +abort +0 +0 +0 +- +- +- +250\n"));
  EXPECT_THAT(screen, Not(HasSubstr("\x1b")));
}

TEST(TopScreenTest, WithoutASampleBeforeThereAreNoRates) {
  const std::string screen = TopScreen(Fleet(1000, 100), nullptr, {24, 120});
  EXPECT_THAT(screen, AllOf(HasSubstr("parked   - tokens/s"), ContainsRegex("25.0% +- +12\n")));
}

TEST(TopScreenTest, AReplicaThatBeganAgainHasNoRate) {
  const auto before = Fleet(1000, 100), now = Fleet(2000, 7);
  EXPECT_THAT(TopScreen(now, &before, {24, 120}), ContainsRegex("r0.*25.0% +- +12\n"));
}

TEST(TopScreenTest, FitsTheScreen) {
  const auto now = Fleet(1000, 100);
  for (const TopSize size : {TopSize{3, 10}, TopSize{5, 40}, TopSize{0, 80}}) {
    std::istringstream screen(TopScreen(now, &now, size));
    size_t rows = 0;
    for (std::string line; std::getline(screen, line); ++rows) EXPECT_LE(line.size(), size.columns);
    EXPECT_EQ(rows, size.rows);
  }
}

TEST(TopScreenTest, NamesAreWhole) {
  const auto now = boost::json::parse(R"json({"replicas":[
    {"replica":"host1 (10.0.0.1:50051)","model":"m\u00f6del\u009b2J\u4e2d","state":"ready"},
    {"replica":"host1 (10.0.0.1:50052)","model":"m","state":"ready"}]})json")
                       .as_object();
  const std::string screen = TopScreen(now, nullptr, {24, 120});
  EXPECT_THAT(screen, HasSubstr("\nREPLICA                MODEL                    STATE  "));
  EXPECT_THAT(screen,
              HasSubstr("\nhost1 (10.0.0.1:50051) m\u00f6del?2J\u4e2d                ready  "));
  EXPECT_THAT(screen, HasSubstr("\nhost1 (10.0.0.1:50052) m                        ready  "));
  EXPECT_THAT(TopScreen(now, nullptr, {24, 25}), HasSubstr("\nhost1 (10.0.0.1:50051) m\u00f6\n"));
}

TEST(TopScreenTest, WhateverTheServerSaysIsShown) {
  for (const char* text : {"{}", R"({"replicas":7,"requests":[1,null]})",
                           R"({"replicas":[{"replica":3,"kv_pages_total":-1}],"draining":1})",
                           R"({"replicas":[{"state":"aaaaaaaaaaaaaaaa\u00f6"}],
                               "requests":[{"outcome":"aaaaaaaaa\u00f6"}]})"})
    EXPECT_THAT(TopScreen(boost::json::parse(text).as_object(), nullptr, {24, 80}),
                HasSubstr("flotilla"));
}

}  // namespace
}  // namespace flotilla
