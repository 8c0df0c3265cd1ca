#include "scheduler_proc/grammar/sandbox_io.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/write_all.h"

namespace flotilla {
namespace {

TEST(SandboxIoTest, ReadsToTheEndWithinLimits) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  ASSERT_TRUE(WriteAll(writer.get(), "hello"));
  EXPECT_EQ(ReadToEnd(reader.get(), 100, RealClock::Now() + 20 * kNsPerMs).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(WriteAll(writer.get(), "world"));
  writer.reset();
  EXPECT_EQ(*ReadToEnd(reader.get(), 100, INT64_MAX), "world");
  EXPECT_FALSE(WriteAll(reader.get(), "nobody there"));
}

TEST(SandboxIoTest, TooManyBytesAreRefused) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd reader(fds[0]);
  const UniqueFd writer(fds[1]);
  ASSERT_TRUE(WriteAll(writer.get(), "hello"));
  EXPECT_EQ(ReadToEnd(reader.get(), 4, INT64_MAX).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SandboxIoTest, DescriptorsTravel) {
  int control[2], data[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data), 0);
  UniqueFd sender(control[0]);
  const UniqueFd receiver(control[1]), reader(data[0]);
  UniqueFd writer(data[1]);
  ASSERT_TRUE(SendWithFd(sender.get(), SandboxMessage::kCompile, writer.get()));
  writer.reset();
  auto message = ReceiveWithFd(receiver.get());
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->kind, SandboxMessage::kCompile);
  ASSERT_TRUE(WriteAll(message->fd.get(), "here"));
  message.reset();  // the last copy
  EXPECT_EQ(*ReadToEnd(reader.get(), 100, INT64_MAX), "here");
  ASSERT_EQ(send(sender.get(), "C", 1, 0), 1);
  EXPECT_FALSE(ReceiveWithFd(receiver.get()).has_value()) << "no descriptor came along";
  sender.reset();
  EXPECT_FALSE(ReceiveWithFd(receiver.get()).has_value());
}

}  // namespace
}  // namespace flotilla
