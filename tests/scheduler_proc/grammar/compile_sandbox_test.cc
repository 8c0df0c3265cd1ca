#include "scheduler_proc/grammar/compile_sandbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <thread>

#include "common/base/clock.h"
#include "tests/scheduler_proc/grammar/grammar_testing.h"

namespace flotilla {
namespace {

using testing::ExpectFollows;
using ::testing::HasSubstr;
using testing::SandboxProgram;
using testing::TestTokens;

// Takes xgrammar's compiler minutes: every optional letter doubles what it looks at.
const GrammarSpec kEndless = [] {
  GrammarSpec spec{GrammarKind::kRegex, ""};
  for (int i = 0; i < 3000; ++i) spec.text += "a?";
  for (int i = 0; i < 3000; ++i) spec.text += "a";
  return spec;
}();

std::unique_ptr<CompileSandbox> Start(CompileSandbox::Options options = {}) {
  options.program = SandboxProgram();
  auto sandbox = CompileSandbox::Start(options, TestTokens());
  EXPECT_TRUE(sandbox.ok()) << sandbox.status();
  return *std::move(sandbox);
}

// True as soon as it compiles something.
bool WaitForChildOf(int pid) {
  const std::string path = StrCat("/proc/", pid, "/task/", pid, "/children");
  const int64_t end = RealClock::Now() + 10 * kNsPerSecond;
  std::string child;
  while (child.empty() && RealClock::Now() < end) std::ifstream(path) >> child;
  return !child.empty();
}

TEST(CompileSandboxTest, CompilesAndRefuses) {
  const auto sandbox = Start();
  const auto compiled = sandbox->Compile({GrammarKind::kRegex, "a+"}, 10'000);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const XGrammarVocabulary vocabulary(TestTokens());
  const auto grammar = GrammarFromJson(*compiled, vocabulary);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  ExpectFollows(**grammar, "aaa", true);
  const Status refused = sandbox->Compile({GrammarKind::kRegex, "(a"}, 10'000).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("arenthes"));
}

TEST(CompileSandboxTest, WhatRunsAwayIsEndedAndHoldsUpNobody) {
  const auto sandbox = Start();
  ASSERT_TRUE(sandbox->Compile({GrammarKind::kRegex, "a"}, 60'000).ok());  // it has started
  const int64_t begin_ns = RealClock::Now();
  Status endless;
  std::thread other([&] { endless = sandbox->Compile(kEndless, 1000).status(); });
  EXPECT_TRUE(sandbox->Compile({GrammarKind::kRegex, "b"}, 10'000).ok());
  other.join();
  EXPECT_EQ(endless.code(), absl::StatusCode::kDeadlineExceeded) << endless;
  EXPECT_GE(RealClock::Now() - begin_ns, kNsPerSecond);
  EXPECT_LT(RealClock::Now() - begin_ns, 10 * kNsPerSecond);
  EXPECT_TRUE(sandbox->Compile({GrammarKind::kRegex, "c"}, 10'000).ok());
}

TEST(CompileSandboxTest, MemoryAndResultAreBounded) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow needs more address space than the limit leaves";
#endif
  GrammarSpec words{GrammarKind::kEbnf, "root ::= "};
  for (int i = 0; i < 5000; ++i)
    words.text += StrCat(i == 0 ? "" : " | ", "\"", i * 2654435761u % 1000003, "\"");
  const auto narrow = Start({.program = "", .memory_bytes = 1 << 20, .compiled_bytes = 16 << 20});
  const Status memory = narrow->Compile(words, 20'000).status();
  EXPECT_EQ(memory.code(), absl::StatusCode::kInvalidArgument) << memory;
  EXPECT_THAT(std::string(memory.message()), HasSubstr("memory"));
  const auto small = Start({.program = "", .memory_bytes = 512 << 20, .compiled_bytes = 1000});
  const Status size = small->Compile(words, 20'000).status();
  EXPECT_EQ(size.code(), absl::StatusCode::kInvalidArgument) << size;
  EXPECT_THAT(std::string(size.message()), HasSubstr("at most 1000"));
}

TEST(CompileSandboxTest, StartsAgainAfterADeath) {
  const auto sandbox = Start();
  ASSERT_EQ(kill(sandbox->pid(), SIGKILL), 0);
  // It may still reach the socket of the one that is dying.
  const auto compiled = sandbox->Compile({GrammarKind::kRegex, "a"}, 10'000);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
}

// What it was compiling is not to blame.
TEST(CompileSandboxTest, ADeathWhileItCompilesCostsTimeAlone) {
  const auto sandbox = Start();
  Status endless;
  const int first = sandbox->pid();
  std::thread compiling([&] { endless = sandbox->Compile(kEndless, 3000).status(); });
  const bool begun = WaitForChildOf(first);
  kill(first, SIGKILL);
  compiling.join();
  ASSERT_TRUE(begun);
  EXPECT_EQ(endless.code(), absl::StatusCode::kDeadlineExceeded) << endless;
  EXPECT_NE(sandbox->pid(), first);
}

// Nor is what was asked of one that hangs.
TEST(CompileSandboxTest, OneThatHangsIsReplaced) {
  const auto sandbox = Start();
  const GrammarSpec spec{GrammarKind::kRegex, "a"};
  ASSERT_TRUE(sandbox->Compile(spec, 10'000).ok());
  const int first = sandbox->pid();
  ASSERT_EQ(kill(first, SIGSTOP), 0);
  const Status status = sandbox->Compile(spec, 1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(sandbox->Compile(spec, 10'000).ok());
  EXPECT_NE(sandbox->pid(), first);
}

TEST(CompileSandboxTest, WithoutAProgramThereIsNone) {
  const CompileSandbox::Options options = {.program = "/nowhere/flotilla-grammar"};
  EXPECT_EQ(CompileSandbox::Start(options, TestTokens()).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace flotilla
