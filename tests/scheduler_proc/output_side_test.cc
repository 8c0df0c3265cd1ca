// The output side with a real link to a FakeDetokenizer: text joined with tokens, restarts.
#include "scheduler_proc/output/output_side.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <set>
#include <thread>
#include <zmq.hpp>

#include "common/base/check.h"
#include "tests/fakes/fake_detokenizer.h"
#include "tests/fakes/fake_tokenizer.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

class RecordingSink final : public OutputSink {
 public:
  bool Append(uint64_t, v1::Delta&& piece) override {
    std::lock_guard lock(mutex);
    if (piece.choices_size() > 0) {
      text += piece.choices(0).text();
      for (int32_t id : piece.choices(0).token_ids()) tokens.push_back(id);
    }
    held = piece.held_back();
    done = piece.last();
    if (done) last = piece;
    return wanted;
  }
  void Flush() override {
    std::lock_guard lock(mutex);  // between a wait's question and its sleep none is missed
    changed.notify_all();
  }
  template <typename Condition>
  bool Wait(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, condition);
  }
  bool Done() {
    std::lock_guard lock(mutex);
    return done;
  }
  bool WaitDone() {
    return Wait([&] { return done; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::string text, held;
  std::vector<int32_t> tokens;
  v1::Delta last;
  bool done = false, wanted = true;
};

class OutputSideTest : public testing::Test {
 protected:
  OutputSideTest() {
    folder_ = (std::filesystem::temp_directory_path() / "output-side-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    link_ = *DetokLink::Bind("ipc://" + folder_ + "/q", "ipc://" + folder_ + "/p");
    OutputSide::Deps deps;
    deps.assembler = {&tokenizer_, &clock_, link_.get(),
                      &inbox_,     &large_, [this](ReqId) { ++finished_; }};
    deps.queue = &queue_;
    side_ = std::make_unique<OutputSide>(std::move(deps));
    side_->Start();
  }
  ~OutputSideTest() override {
    side_->Stop();
    detokenizer_.reset();
    std::filesystem::remove_all(folder_);
  }
  void StartDetokenizer() {
    detokenizer_.reset();  // two at once would share the frames
    detokenizer_ = std::make_unique<FakeDetokenizer>(&tokenizer_, "ipc://" + folder_ + "/q",
                                                     "ipc://" + folder_ + "/p");
  }
  void Open(ReqId id, StreamOptions options = {}, std::vector<int32_t> resumed = {}) {
    OpenOutput open;
    open.id = id;
    open.options = std::move(options);
    open.sink = sink_;
    open.prompt_tokens = 3;
    open.resumed_ids = std::move(resumed);
    Push(std::move(open));
  }
  void Push(OutputEvent event) {
    std::vector<OutputEvent> events;
    events.push_back(std::move(event));
    queue_.Push(&events);
  }
  void Token(ReqId id, int32_t token, Finish finish = Finish::kNone, uint32_t completion = 0) {
    ReqOutput output;
    output.id = id;
    output.token = token;
    output.finish = finish;
    output.completion_tokens = completion;
    if (finish == Finish::kStop) output.stop_token = token;
    Push(std::move(output));
  }
  void Tokens(ReqId id, const std::string& text) {
    for (char c : text) Token(id, static_cast<unsigned char>(c));
  }

  RealClock clock_;
  FakeTokenizer tokenizer_;
  std::string folder_;
  std::unique_ptr<DetokLink> link_;
  Inbox inbox_{100, [] {}};
  LargeResults large_{&clock_, 1 << 20};
  OutputQueue queue_;
  std::atomic<int> finished_{0};
  std::unique_ptr<OutputSide> side_;
  std::unique_ptr<FakeDetokenizer> detokenizer_;
  std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
};

TEST_F(OutputSideTest, TextFollowsTokensAndNoCharacterIsSplit) {
  StartDetokenizer();
  Open(1);
  Tokens(1, "caf\xc3");
  ASSERT_TRUE(sink_->Wait([&] { return sink_->tokens.size() == 4; }));
  EXPECT_EQ(sink_->text, "caf");
  EXPECT_EQ(sink_->held, "\xc3");
  Token(1, 0xa9);
  Token(1, FakeTokenizer::kEnd, Finish::kStop, 6);
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->text, "café");
  EXPECT_EQ(sink_->tokens.size(), 6u);  // the end token has no text
  EXPECT_EQ(sink_->last.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(sink_->last.choices(0).stop_reason(), "");
  EXPECT_EQ(sink_->last.usage().prompt_tokens(), 3);
  EXPECT_EQ(sink_->last.usage().completion_tokens(), 6);
  EXPECT_TRUE(sink_->Wait([&] { return finished_.load() == 1; }));
}

// Its abort may have come before the request itself.
TEST_F(OutputSideTest, WhatNobodyWaitsForIsAborted) {
  StartDetokenizer();
  sink_->wanted = false;
  Open(1);
  Token(1, 'a');
  ASSERT_TRUE(sink_->Wait([&] { return sink_->tokens.size() == 1; }));
  std::vector<Command> commands;
  for (const int64_t end = clock_.NowNs() + 10 * kNsPerSecond;
       commands.empty() && clock_.NowNs() < end; std::this_thread::yield())
    inbox_.Drain(&commands);
  ASSERT_EQ(commands.size(), 1u);
  ASSERT_TRUE(std::holds_alternative<AbortCommand>(commands[0]));
  EXPECT_EQ(std::get<AbortCommand>(commands[0]).id, 1u);
}

TEST_F(OutputSideTest, PromptLogprobsBeyondAllThatIsKeptAreAnError) {
  StartDetokenizer();
  Open(1);
  ReqOutput output;
  output.id = 1;
  output.token = 'a';
  output.prompt_logprobs.assign(100'000, {.token = 'a', .logprob = -1, .rank = 1, .top = {}});
  Push(std::move(output));
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->last.error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_NE(sink_->last.error().message().find("prompt_logprobs"), std::string::npos);
}

// Those of all requests count together, before the first delta takes them away.
TEST_F(OutputSideTest, PromptLogprobsOfManyAreBoundedTogether) {
  for (ReqId id = 1; id <= 3; ++id) {
    Open(id);
    ReqOutput output;  // no token: more of the prompt is to come
    output.id = id;
    output.prompt_logprobs.assign(30'000, {.token = 'a', .logprob = -1, .rank = 1, .top = {}});
    Push(std::move(output));
  }
  ASSERT_TRUE(sink_->WaitDone());  // the third was one too many
  EXPECT_EQ(sink_->last.error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(sink_->Wait([&] { return side_->live() == 2; }));
}

TEST_F(OutputSideTest, AnUnfinishedCharacterIsFlushedAtTheEnd) {
  StartDetokenizer();
  Open(1);
  Token(1, 'a');
  Token(1, 0xe2, Finish::kLength, 2);
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->text, "a\xef\xbf\xbd");
}

TEST_F(OutputSideTest, AStopStringTruncatesTheCoreAndWinsOverLength) {
  StartDetokenizer();
  StreamOptions options;
  options.stop = {"END"};
  Open(1, options);
  Tokens(1, "oneEN");
  ASSERT_TRUE(sink_->Wait([&] { return sink_->tokens.size() == 5; }));
  EXPECT_EQ(sink_->text, "one");
  EXPECT_EQ(sink_->held, "EN");
  Tokens(1, "Dtw");
  Token(1, 'o', Finish::kLength, 9);  // the core went on, and ended otherwise
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->text, "one");
  EXPECT_EQ(sink_->tokens.size(), 6u);
  EXPECT_EQ(sink_->last.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(sink_->last.choices(0).stop_reason(), "END");
  EXPECT_EQ(sink_->last.usage().completion_tokens(), 6);
  std::vector<Command> commands;
  inbox_.Drain(&commands);
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(std::get<TruncateCommand>(commands[0]).num_tokens, 6u);
}

TEST_F(OutputSideTest, NorDoesItEndOtherwiseBehindItsStopString) {
  StartDetokenizer();
  StreamOptions options;
  options.stop = {"END"};
  for (const Finish finish : {Finish::kError, Finish::kDeadline}) {
    const auto id = static_cast<ReqId>(finish);
    sink_ = std::make_shared<RecordingSink>();
    Open(id, options);
    Tokens(id, "oneEND");
    ASSERT_TRUE(sink_->Wait([&] { return sink_->tokens.size() == 6; }));
    Token(id, '!', finish, 7);
    ASSERT_TRUE(sink_->WaitDone());
    EXPECT_EQ(sink_->text, "one");
    EXPECT_EQ(sink_->last.choices(0).stop_reason(), "END");
    EXPECT_EQ(sink_->last.usage().completion_tokens(), 6);
  }
}

TEST_F(OutputSideTest, AStopStringWithinMinTokensIsText) {
  StartDetokenizer();
  StreamOptions options;
  options.stop = {"END"};
  options.min_tokens = 6;
  Open(1, options);
  Tokens(1, "oneENDtwoEND");
  Token(1, '!', Finish::kLength, 13);
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->text, "oneENDtwo");
  EXPECT_EQ(sink_->last.usage().completion_tokens(), 12);
  EXPECT_EQ(sink_->last.choices(0).stop_reason(), "END");
}

TEST_F(OutputSideTest, MinTokensOutliveTheDetokenizer) {
  StreamOptions options;
  options.stop = {"END"};
  options.min_tokens = 6;
  for (const uint32_t at : {4u, 6u, 8u}) {  // tokens that the first detokenizer sees
    const std::string text = "oneENDtwoEND";
    sink_ = std::make_shared<RecordingSink>();
    StartDetokenizer();
    Open(at, options);
    Tokens(at, text.substr(0, at));
    ASSERT_TRUE(sink_->Wait([&] { return sink_->tokens.size() == at; }));
    StartDetokenizer();
    Tokens(at, text.substr(at));
    Token(at, '!', Finish::kLength, 13);
    ASSERT_TRUE(sink_->WaitDone());
    EXPECT_EQ(sink_->text, "oneENDtwo") << at;
    EXPECT_EQ(sink_->last.usage().completion_tokens(), 12) << at;
  }
}

TEST_F(OutputSideTest, EverythingBeforeTheDetokenizerStartsIsKept) {
  Open(1, {}, {'x', 'y'});
  Tokens(1, "hello");
  Token(1, '!', Finish::kLength, 8);
  StartDetokenizer();
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->text, "hello!");
  EXPECT_EQ(sink_->tokens.size(), 6u);  // the resumed ones were the client's already
}

TEST_F(OutputSideTest, ARestartAtAnyFrameLosesAndRepeatsNothing) {
  const std::string text = "naïve 東京 end";
  for (int frames = 0; frames < 8; ++frames) {
    sink_ = std::make_shared<RecordingSink>();
    StartDetokenizer();
    detokenizer_->DieAfter(frames);
    const ReqId id = ReqId{100} + static_cast<ReqId>(frames);
    StreamOptions options;
    options.stop = {"never"};
    Open(id, options);
    Tokens(id, text);
    Token(id, '.', Finish::kLength, static_cast<uint32_t>(text.size() + 1));
    // It dies at that frame, or the text was through before.
    while (!detokenizer_->dead() && !sink_->Done()) std::this_thread::yield();
    detokenizer_->Restart();
    ASSERT_TRUE(sink_->WaitDone()) << frames;
    EXPECT_EQ(sink_->text, text + ".");
    EXPECT_EQ(sink_->tokens.size(), text.size() + 1);
  }
}

TEST_F(OutputSideTest, AnEmbeddingNeedsNoDetokenizer) {
  StreamOptions options;
  options.embeds = true;
  ReqOutput output;
  output.finish = Finish::kStop;
  output.embedding = {3, 0, -4};
  output.prompt_tokens = 3;
  output.cached_tokens = 2;
  for (const bool normalize : {false, true}) {
    sink_ = std::make_shared<RecordingSink>();
    options.normalize = normalize;
    options.return_timing = normalize;
    Open(++output.id, options);
    Push(ReqOutput(output));
    ASSERT_TRUE(sink_->WaitDone());
    const auto& got = sink_->last.embedding();
    EXPECT_EQ(std::vector<float>(got.begin(), got.end()),
              normalize ? (std::vector<float>{0.6f, 0, -0.8f}) : output.embedding);
    EXPECT_EQ(sink_->last.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(sink_->last.usage().prompt_tokens(), 3);
    EXPECT_EQ(sink_->last.usage().cached_tokens(), 2);
    EXPECT_EQ(sink_->last.usage().completion_tokens(), 0);
    EXPECT_EQ(sink_->last.has_timing(), normalize);
  }
  sink_ = std::make_shared<RecordingSink>();
  Open(++output.id, options);
  output.embedding = {0, 0};
  Push(ReqOutput(output));
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->last.embedding(1), 0) << "of length 0: there is nothing to divide by";
}

TEST_F(OutputSideTest, AbortsDeadlinesAndFailuresDoNotWaitForText) {
  StreamOptions options;
  options.return_timing = true;
  Open(1, options);  // there is no detokenizer
  Token(1, 'a');
  ReqOutput abort;
  abort.id = 1;
  abort.finish = Finish::kDeadline;
  abort.queued_ns = 7;
  abort.wait_reason = WaitReason::kPages;
  Push(std::move(abort));
  ASSERT_TRUE(sink_->WaitDone());
  const v1::Timing& timing = sink_->last.timing();
  EXPECT_EQ(timing.queued_ns(), 7);
  EXPECT_EQ(timing.wait_reason(), WaitReasonName(WaitReason::kPages));
  EXPECT_EQ(timing.first_scheduled_ns(), timing.finished_ns()) << "it was queued to its end";
  EXPECT_EQ(timing.first_token_ns(), timing.finished_ns());
  EXPECT_EQ(sink_->last.choices(0).finish_reason(), v1::FINISH_REASON_DEADLINE);
  EXPECT_TRUE(sink_->tokens.empty());
  sink_ = std::make_shared<RecordingSink>();
  Open(2);
  Push(FailOutput{2, absl::InvalidArgumentError("prompt_ids: bad")});
  ASSERT_TRUE(sink_->WaitDone());
  EXPECT_EQ(sink_->last.error().code(), 3);
  EXPECT_EQ(sink_->last.error().field(), "prompt_ids");
  EXPECT_EQ(sink_->last.choices(0).finish_reason(), v1::FINISH_REASON_ERROR);
}

}  // namespace
}  // namespace flotilla
