#include "scheduler_proc/grammar/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

using testing::ExpectFollows;
using ::testing::HasSubstr;
using testing::SandboxProgram;
using ::testing::StartsWith;
using testing::TestTokens;

// Says how often it was asked: when a grammar is queued, and when its turn comes.
class CountingClock final : public Clock {
 public:
  int64_t NowNs() const override {
    ++asked_;
    return clock_.NowNs();
  }
  int asked() const { return asked_; }

 private:
  const RealClock clock_{};
  mutable std::atomic<int> asked_ = 0;
};

class GrammarCompilerTest : public ::testing::Test {
 protected:
  void Start(GrammarCompiler::Options options) {
    options.sandbox.program = SandboxProgram();
    auto compiler = GrammarCompiler::Start(options, TestTokens(), &clock_, registry_.get());
    ASSERT_TRUE(compiler.ok()) << compiler.status();
    compiler_ = *std::move(compiler);
    metrics_ = std::make_unique<GrammarMetrics>(registry_.get());
  }
  using For = GrammarCompiler::For;
  std::future<GrammarCompiler::Result> Begin(GrammarKind kind, const std::string& text,
                                             For whom = For::kNewRequest) {
    auto promise = std::make_shared<std::promise<GrammarCompiler::Result>>();
    compiler_->Compile({kind, text}, whom, [promise](GrammarCompiler::Result result) {
      promise->set_value(std::move(result));
    });
    return promise->get_future();
  }
  GrammarCompiler::Result Compile(const std::string& regex) {
    return Begin(GrammarKind::kRegex, regex).get();
  }
  static std::string Endless(int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += "a?";
    return text + std::string(static_cast<size_t>(n), 'a');
  }

  const CountingClock clock_{};
  const std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::unique_ptr<GrammarCompiler> compiler_;
  std::unique_ptr<GrammarMetrics> metrics_;  // the same counters
};

constexpr uint32_t kAmpleMs = 60'000;  // for a machine that is busy

TEST_F(GrammarCompilerTest, CompilesOnceAndKeepsIt) {
  Start({.sandbox = {}, .threads = 2, .timeout_ms = kAmpleMs, .cache_bytes = 1 << 20});
  const auto first = Compile("a+");
  ASSERT_TRUE(first.ok()) << first.status();
  ExpectFollows(**first, "aa", true);
  EXPECT_EQ(*Compile("a+"), *first);
  EXPECT_EQ(metrics_->compiled.Value(), 1);
  EXPECT_EQ(metrics_->hits.Value(), 1);
  EXPECT_GT(metrics_->cache_bytes.Value(), 0);
}

TEST_F(GrammarCompilerTest, ThoseWhoAskMeanwhileShareOneCompile) {
  Start({.sandbox = {}, .threads = 2, .timeout_ms = kAmpleMs, .cache_bytes = 1 << 20});
  std::vector<std::future<GrammarCompiler::Result>> futures;
  for (int i = 0; i < 10; ++i) futures.push_back(Begin(GrammarKind::kRegex, "[a-z]{3,9}"));
  const auto first = futures[0].get();
  ASSERT_TRUE(first.ok());
  for (size_t i = 1; i < futures.size(); ++i) EXPECT_EQ(*futures[i].get(), *first);
  EXPECT_EQ(metrics_->compiled.Value(), 1);
}

TEST_F(GrammarCompilerTest, RefusalsNameTheFieldAndAreKept) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = kAmpleMs, .cache_bytes = 1 << 20});
  for (int i = 0; i < 2; ++i) {
    const Status status = Compile("(a").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith("structured.regex: "));
  }
  EXPECT_EQ(metrics_->invalid.Value(), 1);
  EXPECT_THAT(std::string(Begin(GrammarKind::kEbnf, "root ::= x").get().status().message()),
              StartsWith("structured.ebnf: "));
}

TEST_F(GrammarCompilerTest, WhatTakesTooLongIsRefusedInTime) {
  Start({.sandbox = {}, .threads = 2, .timeout_ms = 3000, .cache_bytes = 1 << 20});
  const int64_t begin_ns = clock_.NowNs();
  const Status status = Compile(Endless(3000)).status();
  EXPECT_LT(clock_.NowNs() - begin_ns, 20 * kNsPerSecond);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("structured.regex: too complex"));
  EXPECT_EQ(metrics_->timeout.Value(), 1);
  EXPECT_FALSE(Compile(Endless(3000)).ok());
  EXPECT_EQ(metrics_->hits.Value(), 1);  // not tried again at once
}

// A second that is short for a new request is enough for one that goes on, and what was refused a
// moment ago is tried again for it.
TEST_F(GrammarCompilerTest, WhatCompiledElsewhereHasMoreTime) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = 0, .cache_bytes = 1 << 20});
  EXPECT_EQ(Compile("a+").status().code(), absl::StatusCode::kResourceExhausted)
      << "no time at all";
  compiler_.reset();
  Start({.sandbox = {}, .threads = 1, .timeout_ms = 1000, .cache_bytes = 1 << 20});
  // The sandbox may take as long to start.
  ASSERT_TRUE(Begin(GrammarKind::kRegex, "a+", For::kBegunElsewhere).get().ok());
  const auto tries = [this] { return metrics_->timeout.Value() + metrics_->invalid.Value(); };
  const Status refused = Compile(Endless(3000)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(tries(), 1);
  EXPECT_FALSE(Compile(Endless(3000)).ok());
  EXPECT_EQ(tries(), 1) << "it is remembered";
  EXPECT_FALSE(Begin(GrammarKind::kRegex, Endless(3000), For::kBegunElsewhere).get().ok());
  EXPECT_EQ(tries(), 2) << "but not for those";
}

// It does not wait behind new requests because one of them asked for the same text.
TEST_F(GrammarCompilerTest, WhatCompiledElsewhereIsBroughtForward) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = 2000, .cache_bytes = 1 << 20});
  ASSERT_TRUE(Begin(GrammarKind::kRegex, "a+", For::kBegunElsewhere).get().ok());
  auto running = Begin(GrammarKind::kRegex, Endless(3000));
  auto asked = Begin(GrammarKind::kRegex, "b+");
  auto begun = Begin(GrammarKind::kRegex, "b+", For::kBegunElsewhere);
  EXPECT_TRUE(begun.get().ok());
  EXPECT_TRUE(asked.get().ok()) << "whoever asked first has the same";
  EXPECT_FALSE(running.get().ok());
}

// Nor is it refused because a new request's time ended.
TEST_F(GrammarCompilerTest, WhatCompiledElsewhereOutlivesANewRequestsTime) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = 1000, .cache_bytes = 1 << 20});
  ASSERT_TRUE(Begin(GrammarKind::kRegex, "a+", For::kBegunElsewhere).get().ok());
  const int before = clock_.asked();
  auto asked = Begin(GrammarKind::kRegex, Endless(3000));
  while (clock_.asked() < before + 2) std::this_thread::yield();  // its turn has come
  auto begun = Begin(GrammarKind::kRegex, Endless(3000), For::kBegunElsewhere);
  EXPECT_FALSE(asked.get().ok());
  EXPECT_FALSE(begun.get().ok());
  EXPECT_EQ(metrics_->timeout.Value() + metrics_->invalid.Value(), 2) << "it was tried again";
}

TEST_F(GrammarCompilerTest, TooManyAtOnceAreToldSo) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = 600, .cache_bytes = 1 << 20});
  std::vector<std::future<GrammarCompiler::Result>> futures;
  for (int i = 0; i < 3; ++i) futures.push_back(Begin(GrammarKind::kRegex, Endless(2000 + i)));
  int busy = 0;
  for (auto& future : futures) busy += absl::IsResourceExhausted(future.get().status());
  EXPECT_GE(busy, 1);
  EXPECT_EQ(metrics_->busy.Value(), busy);
}

TEST_F(GrammarCompilerTest, WhoeverIsOneTooManyIsToldAtOnce) {
  GrammarCompiler::Options options;
  options.threads = 1;
  options.timeout_ms = 3000;
  options.max_waiting = 2;
  Start(options);
  auto first = Begin(GrammarKind::kRegex, Endless(2000));
  auto same = Begin(GrammarKind::kRegex, Endless(2000));
  EXPECT_EQ(Compile("b").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(first.get().ok());
  EXPECT_FALSE(same.get().ok());
  EXPECT_EQ(Compile("b").status().code(), absl::StatusCode::kOk);
  EXPECT_EQ(metrics_->busy.Value(), 1);
}

TEST_F(GrammarCompilerTest, TheCacheStaysWithinItsBytes) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = kAmpleMs, .cache_bytes = 20'000});
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(Compile(StrCat("a{", i + 1, "}")).ok());
  EXPECT_LE(metrics_->cache_bytes.Value(), 20'000);
  EXPECT_EQ(metrics_->compiled.Value(), 30);
  ASSERT_TRUE(Compile("a{30}").ok());
  EXPECT_EQ(metrics_->hits.Value(), 1);  // the last is there, the first is not
  ASSERT_TRUE(Compile("a{1}").ok());
  EXPECT_EQ(metrics_->compiled.Value(), 31);
}

TEST_F(GrammarCompilerTest, StopTellsThoseWhoWait) {
  Start({.sandbox = {}, .threads = 1, .timeout_ms = 1000, .cache_bytes = 1 << 20});
  auto running = Begin(GrammarKind::kRegex, Endless(3000));
  auto queued = Begin(GrammarKind::kRegex, "b");
  compiler_->Stop();
  EXPECT_FALSE(running.get().ok());
  EXPECT_EQ(queued.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Compile("c").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace flotilla
