#include "common/base/line_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/support/read_all.h"

namespace flotilla {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

class LineWriterTest : public testing::Test {
 protected:
  LineWriterTest() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_.reset(ends[0]);
    fd_.reset(ends[1]);
    fcntl(reader_.get(), F_SETFL, O_NONBLOCK);
    room_ = static_cast<size_t>(fcntl(fd_.get(), F_SETPIPE_SZ, 16384));
    const auto note = [](uint64_t lines) { return std::to_string(lines) + " missing\n"; };
    writer_.emplace(fd_.get(), note, /*max_wait_ms=*/1);
  }

  void Write(const std::string& text) { writer_->Write(text + "\n"); }
  void Fill() { EXPECT_EQ(write(fd_.get(), std::string(room_, '.').data(), room_), room_); }

  std::string Read() { return ReadAll(reader_.get()); }

  UniqueFd reader_, fd_;
  size_t room_ = 0;
  std::optional<LineWriter> writer_;
};

TEST_F(LineWriterTest, LinesArriveAsTheyAre) {
  Write("one");
  Write("two");
  EXPECT_EQ(Read(), "one\ntwo\n");
}

TEST_F(LineWriterTest, AStalledReaderCostsLinesAndLearnsHowMany) {
  const uint64_t before = LineWriter::lines_lost();
  Fill();
  for (int i = 0; i < 3; ++i) Write("lost");
  EXPECT_EQ(LineWriter::lines_lost(), before + 3);
  Read();
  Write("kept");
  Write("too");
  EXPECT_EQ(Read(), "3 missing\nkept\ntoo\n");
}

TEST_F(LineWriterTest, ALineThatAStallCutsIsFinishedFirst) {
  const std::string longer(2 * room_, 'x');
  Write(longer);
  Write("lost");
  std::string text = Read();
  EXPECT_EQ(text.size(), room_);
  Write("lost too");
  text += Read();
  Write("kept");
  text += Read();
  Write("too");
  text += Read();
  EXPECT_TRUE(text == longer + "\n2 missing\nkept\ntoo\n") << text.substr(room_);
}

TEST_F(LineWriterTest, LinesOfManyThreadsNeverMix) {
  constexpr int kThreads = 4, kLines = 200;
  const std::string longer(5000, 'x');
  writer_.emplace(fd_.get(), nullptr, /*max_wait_ms=*/60'000);  // none is dropped
  std::vector<std::thread> threads;
  std::string text;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int line = 0; line < kLines; ++line) Write(longer);
    });
  }
  std::thread reader([&] {
    fcntl(reader_.get(), F_SETFL, 0);
    text = Read();
  });
  for (std::thread& thread : threads) thread.join();
  fd_.reset();
  reader.join();
  std::string expected;
  for (int i = 0; i < kThreads * kLines; ++i) expected += longer + "\n";
  EXPECT_TRUE(text == expected) << text.size() << " bytes";
}

TEST_F(LineWriterTest, ATerminalThatNobodyReadsStallsNobody) {
  const UniqueFd master(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  ASSERT_TRUE(master.valid());
  ASSERT_EQ(grantpt(master.get()), 0);
  ASSERT_EQ(unlockpt(master.get()), 0);
  const UniqueFd terminal(open(ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  LineWriter writer(
      terminal.get(), [](uint64_t) { return std::string("missing\n"); }, 1);
  for (int i = 0; i < 4000; ++i) writer.Write(std::string(100, 'x') + "\n");
  pollfd entry{master.get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 20'000), 1);
  std::array<char, 64> begin;
  ASSERT_GT(read(master.get(), begin.data(), begin.size()), 0);
  EXPECT_THAT(std::string(begin.data(), begin.size()), StartsWith("xxxx"));
}

TEST_F(LineWriterTest, WhereNobodyCanReadLinesVanish) {
  signal(SIGPIPE, SIG_IGN);
  reader_.reset();
  const uint64_t before = LineWriter::lines_lost();
  Write("gone");
  Write("gone");
  EXPECT_EQ(LineWriter::lines_lost(), before + 2);
  signal(SIGPIPE, SIG_DFL);
}

TEST_F(LineWriterTest, LinesThatAFullDiskTakesNotAreCounted) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  LineWriter writer(full.get(), nullptr);
  const uint64_t before = LineWriter::lines_lost();
  writer.Write("gone\n");
  EXPECT_EQ(LineWriter::lines_lost(), before + 1);
}

}  // namespace
}  // namespace flotilla
