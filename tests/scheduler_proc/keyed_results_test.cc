#include "scheduler_proc/front/keyed_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace flotilla {
namespace {

using ::testing::HasSubstr;

v1::Keyed Key(char key, char digest = 'd') {
  v1::Keyed keyed;
  keyed.set_key(std::string(64, key));
  keyed.set_digest(std::string(64, digest));
  return keyed;
}

v1::Delta Piece(int32_t token, v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED) {
  v1::Delta delta;
  v1::ChoiceDelta* choice = delta.add_choices();
  choice->add_token_ids(token);
  choice->set_text(StrCat(token, " "));
  choice->set_finish_reason(finish);
  delta.set_last(finish != v1::FINISH_REASON_UNSPECIFIED);
  return delta;
}

// What one stream was given.
class FakeSink final : public OutputSink {
 public:
  bool Append(uint64_t, v1::Delta&& piece) override {
    if (piece.choices_size() > 0) {
      text += piece.choices(0).text();
      num_tokens += static_cast<size_t>(piece.choices(0).token_ids_size());
    }
    if (piece.has_error()) error = piece.error().message();
    last = last || piece.last();
    timed = timed || piece.has_timing();
    return wants;
  }
  void Flush() override { ++flushes; }
  std::string text, error;
  size_t num_tokens = 0;
  bool last = false, timed = false, wants = true;
  int flushes = 0;
};

class KeyedResultsTest : public testing::Test {
 protected:
  // It has so many Pieces, from 0 on.
  static KeyedResults::Consumer Behind(const std::shared_ptr<FakeSink>& sink, int tokens) {
    KeyedResults::Consumer consumer{sink, 7, static_cast<uint32_t>(tokens)};
    for (int i = 0; i < tokens; ++i) consumer.text_bytes += Piece(i).choices(0).text().size();
    return consumer;
  }
  KeyedResults::Place Ask(const v1::Keyed& keyed, const std::shared_ptr<FakeSink>& sink,
                          int first_token = 0, const v1::Delta& before = {}) {
    auto place = results_->AttachOrBegin(keyed, ++last_id_, Behind(sink, first_token), before);
    EXPECT_TRUE(place.ok()) << place.status();
    return place.ok() ? *place : KeyedResults::Place{};
  }
  // Runs a request of the key to its end.
  void Run(const v1::Keyed& keyed, int tokens, v1::FinishReason reason) {
    const auto place = Ask(keyed, std::make_shared<FakeSink>());
    ASSERT_NE(place.sink, nullptr);
    for (int i = 0; i < tokens; ++i) place.sink->Append(0, Piece(i));
    place.sink->Append(0, Piece(tokens, reason));
    place.sink->Flush();
  }
  double Count(const char* outcome) {
    KeyedMetrics metrics(&registry_, {});
    const std::map<std::string, double> values = {
        {"begun", metrics.begun.Value()},
        {"attached_running", metrics.attached_running.Value()},
        {"attached_finished", metrics.attached_finished.Value()},
        {"conflict", metrics.conflicts.Value()},
        {"alone", metrics.alone.Value()}};
    return values.at(outcome);
  }
  double Bytes() { return KeyedMetrics(&registry_, {}).bytes.Value(); }
  void Limit(KeyedResultsOptions options) {
    results_.emplace(options, &clock_, KeyedMetrics(&registry_, {}));
  }

  FakeClock clock_{1000 * kNsPerSecond};
  prometheus::Registry registry_;
  std::optional<KeyedResults> results_{std::in_place, KeyedResultsOptions{}, &clock_,
                                       KeyedMetrics(&registry_, {})};
  ReqId last_id_ = 0;
};

TEST_F(KeyedResultsTest, WhoComesWhileItRunsGetsAllOfIt) {
  const auto first = std::make_shared<FakeSink>(), second = std::make_shared<FakeSink>();
  const auto begun = Ask(Key('a'), first);
  ASSERT_NE(begun.sink, nullptr);
  EXPECT_TRUE(begun.shared);
  EXPECT_EQ(begun.id, 1u);
  begun.sink->Append(0, Piece(1));
  begun.sink->Append(0, Piece(2));
  begun.sink->Flush();
  EXPECT_TRUE(results_->Contains(Key('a').key()));

  const auto attached = Ask(Key('a'), second);
  EXPECT_EQ(attached.sink, nullptr);
  EXPECT_EQ(attached.id, 1u) << "it shows the first request";
  EXPECT_EQ(second->text, "1 2 ");
  EXPECT_EQ(second->flushes, 1);
  begun.sink->Append(0, Piece(3, v1::FINISH_REASON_STOP));
  begun.sink->Flush();
  for (const auto& sink : {first, second}) {
    EXPECT_EQ(sink->text, "1 2 3 ");
    EXPECT_TRUE(sink->last);
  }
  EXPECT_EQ(second->flushes, 2);
  EXPECT_EQ(Count("begun"), 1);
  EXPECT_EQ(Count("attached_running"), 1);
}

TEST_F(KeyedResultsTest, WhoHasNoRoomForItAsksAgain) {
  const auto first = std::make_shared<FakeSink>(), second = std::make_shared<FakeSink>();
  const auto begun = Ask(Key('a'), first);
  for (int i = 0; i < 100; ++i) begun.sink->Append(0, Piece(i));
  const auto refused = results_->AttachOrBegin(Key('a'), 2, {second, 7, 0, /*room=*/500});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAborted) << refused.status();
  EXPECT_EQ(second->num_tokens, 0u);
  KeyedResults::Consumer has_most = Behind(second, 60);
  has_most.room = 500;
  EXPECT_TRUE(results_->AttachOrBegin(Key('a'), 2, has_most).ok());
  EXPECT_EQ(second->num_tokens, 40u);
}

TEST_F(KeyedResultsTest, TimingIsOfWhoBeganIt) {
  const auto first = std::make_shared<FakeSink>(), second = std::make_shared<FakeSink>(),
             third = std::make_shared<FakeSink>();
  const auto begun = Ask(Key('a'), first);
  Ask(Key('a'), second);
  v1::Delta last = Piece(1, v1::FINISH_REASON_STOP);
  last.mutable_timing()->set_finished_ns(5);
  begun.sink->Append(0, std::move(last));
  Ask(Key('a'), third);
  EXPECT_TRUE(first->timed);
  EXPECT_TRUE(second->last && !second->timed);
  EXPECT_TRUE(third->last && !third->timed);
}

TEST_F(KeyedResultsTest, WhoWantsNoMoreIsForgotten) {
  const auto first = std::make_shared<FakeSink>(), second = std::make_shared<FakeSink>(),
             third = std::make_shared<FakeSink>();
  const auto begun = Ask(Key('a'), first);
  Ask(Key('a'), second);
  Ask(Key('a'), third);
  first->wants = second->wants = false;
  begun.sink->Append(0, Piece(1));
  EXPECT_EQ(first.use_count(), 1) << "it would be kept until the request ends";
  EXPECT_EQ(second.use_count(), 1);
  v1::Delta last = Piece(2, v1::FINISH_REASON_STOP);
  last.mutable_timing()->set_finished_ns(5);
  begun.sink->Append(0, std::move(last));
  EXPECT_EQ(second->text, "1 ");
  EXPECT_EQ(third->text, "1 2 ");
  EXPECT_FALSE(third->timed) << "the time of who began it";
}

TEST_F(KeyedResultsTest, AnEndedOneIsKeptForAWhile) {
  Run(Key('a'), 3, v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(results_->Tick(clock_.NowNs()), clock_.NowNs() + 600 * kNsPerSecond);
  const auto again = std::make_shared<FakeSink>();
  const auto place = Ask(Key('a'), again);
  EXPECT_EQ(place.sink, nullptr);
  EXPECT_EQ(place.id, 0u);
  EXPECT_EQ(again->text, "0 1 2 3 ");
  EXPECT_TRUE(again->last);
  EXPECT_EQ(Count("attached_finished"), 1);

  clock_.AdvanceNs(600 * kNsPerSecond);
  EXPECT_EQ(results_->Tick(clock_.NowNs()), INT64_MAX);
  EXPECT_FALSE(results_->Contains(Key('a').key()));
  EXPECT_NE(Ask(Key('a'), again).sink, nullptr);
}

TEST_F(KeyedResultsTest, WhatDidNotEndByItselfIsForgotten) {
  for (const v1::FinishReason reason :
       {v1::FINISH_REASON_ABORT, v1::FINISH_REASON_DEADLINE, v1::FINISH_REASON_ERROR}) {
    Run(Key('a'), 2, reason);
    EXPECT_FALSE(results_->Contains(Key('a').key())) << reason;
  }
  const auto sink = std::make_shared<FakeSink>();
  const auto place = Ask(Key('a'), sink);
  v1::Delta refused = Piece(0, v1::FINISH_REASON_STOP);
  refused.mutable_error()->set_message("no");
  place.sink->Append(0, std::move(refused));
  EXPECT_EQ(sink->error, "no");
  EXPECT_FALSE(results_->Contains(Key('a').key()));
  v1::Delta large = Piece(1);
  large.set_large_result_id(5);
  Ask(Key('a'), sink).sink->Append(0, std::move(large));
  EXPECT_FALSE(results_->Contains(Key('a').key())) << "it can be fetched once";
  EXPECT_EQ(KeyedMetrics(&registry_, {}).bytes.Value(), 0);
}

TEST_F(KeyedResultsTest, AKeyStandsForOneRequest) {
  const auto sink = std::make_shared<FakeSink>();
  Ask(Key('a', 'x'), sink);
  const auto other = results_->AttachOrBegin(Key('a', 'y'), 9, {sink, 8, 0});
  EXPECT_TRUE(absl::IsAlreadyExists(other.status()));
  EXPECT_THAT(other.status().message(), HasSubstr("idempotency_key: "));
  EXPECT_EQ(Count("conflict"), 1);
  EXPECT_NE(Ask(Key('b', 'y'), sink).sink, nullptr);
  v1::Keyed bad = Key('c');
  bad.set_key("short");
  EXPECT_TRUE(absl::IsInvalidArgument(results_->AttachOrBegin(bad, 9, {sink, 8, 0}).status()));
}

// A router that went on from token 2 elsewhere, and one that comes with more or less.
TEST_F(KeyedResultsTest, WhoHasMoreThanItBeganWithAttaches) {
  const auto sink = std::make_shared<FakeSink>(), more = std::make_shared<FakeSink>(),
             less = std::make_shared<FakeSink>(), ahead = std::make_shared<FakeSink>();
  const auto place = Ask(Key('a'), sink, /*first_token=*/2);
  place.sink->Append(0, Piece(2));
  place.sink->Append(0, Piece(3));
  EXPECT_EQ(Ask(Key('a'), more, 3).sink, nullptr);
  EXPECT_EQ(more->text, "3 ");
  EXPECT_EQ(more->num_tokens, 1u);

  const auto own = Ask(Key('a'), less, 0);
  EXPECT_EQ(own.sink, less);
  EXPECT_FALSE(own.shared);
  EXPECT_EQ(Count("alone"), 1);

  const auto waits = Ask(Key('a'), ahead, 6);
  EXPECT_EQ(waits.sink, nullptr);
  EXPECT_TRUE(waits.shared);
  for (int i = 4; i < 8; ++i) place.sink->Append(0, Piece(i));
  EXPECT_EQ(ahead->text, "6 7 ") << "what it has is not told again";
  place.sink->Append(0, Piece(8, v1::FINISH_REASON_STOP));
  for (const auto& each : {sink, more, ahead}) EXPECT_TRUE(each->last);
  EXPECT_EQ(ahead->text, "6 7 8 ");
}

TEST_F(KeyedResultsTest, WhoWaitsInVainAsksAgain) {
  const auto sink = std::make_shared<FakeSink>(), ahead = std::make_shared<FakeSink>();
  const auto place = Ask(Key('a'), sink);
  place.sink->Append(0, Piece(0));
  Ask(Key('a'), ahead, 6);
  place.sink->Append(0, Piece(1, v1::FINISH_REASON_ABORT));
  EXPECT_THAT(ahead->error, HasSubstr("try again"));
  EXPECT_TRUE(ahead->last);
  EXPECT_EQ(ahead->flushes, 2) << "once when it came";
  Run(Key('b'), 3, v1::FINISH_REASON_STOP);
  EXPECT_FALSE(Ask(Key('b'), ahead, 9).shared) << "that has ended before";
}

TEST_F(KeyedResultsTest, WhatWasThereBeforeIsTold) {
  const auto sink = std::make_shared<FakeSink>(), less = std::make_shared<FakeSink>(),
             none = std::make_shared<FakeSink>();
  v1::Delta before = Piece(0);
  before.mutable_choices(0)->add_token_ids(1);
  before.mutable_choices(0)->set_text("0 1 ");
  const auto place = Ask(Key('a'), sink, 2, before);
  place.sink->Append(0, Piece(2));
  EXPECT_EQ(Ask(Key('a'), less, 1).sink, nullptr);
  EXPECT_EQ(Ask(Key('a'), none).sink, nullptr);
  place.sink->Append(0, Piece(3, v1::FINISH_REASON_STOP));
  EXPECT_EQ(sink->text, "2 3 ");
  EXPECT_EQ(less->text, "1 2 3 ") << "cut in the midst of what was one piece";
  EXPECT_EQ(less->num_tokens, 3u);
  EXPECT_EQ(none->text, "0 1 2 3 ");
  EXPECT_EQ(Count("alone"), 0);
}

TEST_F(KeyedResultsTest, AttachBeginsNothing) {
  const auto sink = std::make_shared<FakeSink>();
  EXPECT_TRUE(absl::IsNotFound(results_->Attach(Key('a'), Behind(sink, 0)).status()));
  EXPECT_FALSE(results_->Contains(Key('a').key()));
  Run(Key('a'), 3, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(results_->Attach(Key('a'), Behind(sink, 2)).ok());
  EXPECT_EQ(sink->text, "2 3 ");
}

TEST_F(KeyedResultsTest, WhatIsKeptIsCountedAsWhatItTakes) {
  Run(Key('a'), 10'000, v1::FINISH_REASON_LENGTH);
  EXPECT_GT(Bytes(), 10'000 * 8);
  EXPECT_LT(Bytes(), 10'000 * 40);
}

TEST_F(KeyedResultsTest, TheLongestEndedGoesFirst) {
  Run(Key('a'), 16, v1::FINISH_REASON_LENGTH);
  const auto limit = static_cast<uint64_t>(2.5 * Bytes());
  Limit({.max_bytes = limit});
  Run(Key('a'), 16, v1::FINISH_REASON_LENGTH);
  clock_.AdvanceNs(1);
  Run(Key('b'), 16, v1::FINISH_REASON_LENGTH);
  ASSERT_TRUE(results_->Contains(Key('a').key()));
  clock_.AdvanceNs(1);
  Run(Key('c'), 16, v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(results_->Contains(Key('a').key()));
  EXPECT_TRUE(results_->Contains(Key('c').key()));
  EXPECT_LE(Bytes(), static_cast<double>(limit));
}

TEST_F(KeyedResultsTest, OneThatGrowsTooLargeEndsWhenNobodyWaits) {
  Limit({.max_bytes = 4 << 10});
  const auto sink = std::make_shared<FakeSink>();
  const auto place = Ask(Key('a'), sink);
  EXPECT_TRUE(place.sink->Append(0, Piece(0)));
  sink->wants = false;
  EXPECT_TRUE(place.sink->Append(0, Piece(1))) << "it is kept for those who ask again";
  bool wanted = true;
  for (int i = 2; i < 300 && wanted; ++i) wanted = place.sink->Append(0, Piece(i));
  EXPECT_FALSE(wanted);
  EXPECT_FALSE(results_->Contains(Key('a').key()));
}

TEST_F(KeyedResultsTest, OneThatGrowsTooLargeGoesOnForThoseAttached) {
  Limit({.max_bytes = 4 << 10});
  const auto sink = std::make_shared<FakeSink>();
  const auto place = Ask(Key('a'), sink);
  for (int i = 0; i < 200; ++i) place.sink->Append(0, Piece(i));
  EXPECT_FALSE(results_->Contains(Key('a').key()));
  place.sink->Append(0, Piece(200, v1::FINISH_REASON_STOP));
  place.sink->Flush();
  EXPECT_EQ(sink->num_tokens, 201u);
  EXPECT_TRUE(sink->last);
  EXPECT_EQ(sink->flushes, 1);
}

TEST_F(KeyedResultsTest, ManyAskAtOnceAndOneRuns) {
  std::vector<std::shared_ptr<FakeSink>> sinks;
  std::vector<std::thread> threads;
  std::atomic<int> begun{0};
  for (int i = 0; i < 8; ++i) sinks.push_back(std::make_shared<FakeSink>());
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto place = results_->AttachOrBegin(Key('a'), ReqId{i + 1}, {sinks[i], 1, 0});
      if (place->sink == nullptr) return;
      ++begun;
      for (int token = 0; token < 50; ++token) place->sink->Append(0, Piece(token));
      place->sink->Append(0, Piece(50, v1::FINISH_REASON_STOP));
      place->sink->Flush();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(begun, 1);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->num_tokens, 51u);
    EXPECT_TRUE(sink->last);
  }
}

}  // namespace
}  // namespace flotilla
