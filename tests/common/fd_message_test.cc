#include "common/base/fd_message.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

namespace flotilla {
namespace {

class FdMessageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    sender_.reset(ends[0]);
    receiver_.reset(ends[1]);
  }
  static size_t OpenFds() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
      ++count;
    return count;
  }
  UniqueFd sender_, receiver_;
};

TEST_F(FdMessageTest, BytesAndDescriptorsArrive) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd reader(pipe_ends[0]), writer(pipe_ends[1]);
  const int fds[] = {reader.get(), writer.get()};
  ASSERT_TRUE(SendFdMessage(sender_.get(), "two of a pipe", fds));
  ASSERT_TRUE(SendFdMessage(sender_.get(), "none", {}));
  const auto first = ReceiveFdMessage(receiver_.get(), 100);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->bytes, "two of a pipe");
  ASSERT_EQ(first->fds.size(), 2u);
  EXPECT_EQ(fcntl(first->fds[0].get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(write(first->fds[1].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  const auto second = ReceiveFdMessage(receiver_.get(), 100);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->bytes, "none");
  EXPECT_TRUE(second->fds.empty());
}

TEST_F(FdMessageTest, WhatIsTooLargeIsRefusedAndItsDescriptorsAreClosed) {
  const int fds[] = {sender_.get()};
  const size_t open_before = OpenFds();
  ASSERT_TRUE(SendFdMessage(sender_.get(), "too many bytes", fds));
  EXPECT_FALSE(ReceiveFdMessage(receiver_.get(), 8).has_value());
  EXPECT_EQ(OpenFds(), open_before);
}

TEST_F(FdMessageTest, MoreDescriptorsThanAllowedAreRefused) {
  const size_t open_before = OpenFds();
  char byte = 'x';
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 6)] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * 6);
  for (size_t i = 0; i < 6; ++i) reinterpret_cast<int*>(CMSG_DATA(rights))[i] = sender_.get();
  ASSERT_EQ(sendmsg(sender_.get(), &header, 0), 1);
  EXPECT_FALSE(ReceiveFdMessage(receiver_.get(), 8).has_value());
  EXPECT_EQ(OpenFds(), open_before);
}

TEST_F(FdMessageTest, AnEndIsNothing) {
  sender_.reset();
  EXPECT_FALSE(ReceiveFdMessage(receiver_.get(), 8).has_value());
  EXPECT_FALSE(SendFdMessage(receiver_.get(), "x", {}));
}

}  // namespace
}  // namespace flotilla
