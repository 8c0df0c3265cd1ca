#include "deploy/launcher/stall_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "common/base/clock.h"
#include "shm/ring.h"

namespace flotilla {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(StallDumpTest, NamesEveryThreadOfAStoppedProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::thread other([] {
      prctl(PR_SET_NAME, "the other");
      for (;;) pause();
    });
    for (;;) pause();
  }
  const auto named = Contains(HasSubstr("thread=the other"));
  while (!::testing::Value(DescribeThreads(child), named)) std::this_thread::yield();
  kill(child, SIGSTOP);
  ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  std::vector<std::string> lines;
  do {  // every thread's stop may come a moment later
    lines = DescribeThreads(child);
  } while (!::testing::Value(lines, Contains(HasSubstr("thread=the other state=T"))));
#ifdef __SANITIZE_THREAD__
  EXPECT_EQ(lines.size(), 3u);  // it has one of its own
#else
  EXPECT_EQ(lines.size(), 2u);
#endif
  EXPECT_THAT(lines, Contains(HasSubstr("cpu_seconds=0.0")));
  kill(child, SIGKILL);
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT), 0);
  // Dead, but not waited for: its files are still there.
  EXPECT_THAT(DescribeThreads(child), ::testing::Each(HasSubstr("state=Z")));
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(DescribeThreads(child).empty());
}

TEST(StallDumpTest, AThreadMayEndWhileItIsLookedAt) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) std::thread([] {}).join();
  }
  size_t most = 0;
  for (int i = 0; i < 3000 || most < 2; ++i) most = std::max(most, DescribeThreads(child).size());
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_GE(most, 2u);
}

TEST(StallDumpTest, SaysHowFarARingsReadersAreBehind) {
  auto segment = Segment::Create("stall-dump-test", RingSegmentBytes(4096));
  ASSERT_TRUE(segment.ok());
  EXPECT_THAT(DescribeRing("steps", *segment), HasSubstr("wrong magic"));
  ASSERT_TRUE(InitRing(*segment, 2).ok());
  auto writer = RingWriter::Attach(&*segment);
  auto reader = RingReader::Attach(&*segment, 1, WaitPolicy{});
  ASSERT_TRUE(writer.ok() && reader.ok());
  ASSERT_TRUE(writer->Write("12345678", RealClock::Now() + kNsPerSecond).ok());
  ASSERT_TRUE(reader->TryRead().ok());
  reader->Release();
  EXPECT_EQ(DescribeRing("steps", *segment),
            "name=steps bytes=4096 written=16 reader_0=16_behind reader_1=0_behind");
  writer->DeactivateReader(0);
  EXPECT_THAT(DescribeRing("steps", *segment), HasSubstr("reader_0=gone"));
}

}  // namespace
}  // namespace flotilla
