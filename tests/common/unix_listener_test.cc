#include "common/base/unix_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace flotilla {
namespace {

class UnixListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = "/tmp/unix-listener-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/socket";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  absl::StatusCode Connect() const { return ConnectUnix(path_, SOCK_STREAM).status().code(); }
  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(UnixListenerTest, ListensForThisUserAndLeavesNothing) {
  EXPECT_EQ(Connect(), absl::StatusCode::kNotFound);
  auto listener = UnixListener::Listen(path_, SOCK_STREAM);
  ASSERT_TRUE(listener.ok()) << listener.status();
  struct stat file = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_EQ(Connect(), absl::StatusCode::kOk);
  UnixListener moved = *std::move(listener);
  EXPECT_EQ(Connect(), absl::StatusCode::kOk);
  moved.Close();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(Connect(), absl::StatusCode::kNotFound);
}

TEST_F(UnixListenerTest, WhoHasReplacedItKeepsTheFile) {
  auto first = UnixListener::Listen(path_, SOCK_STREAM);
  auto second = UnixListener::Listen(path_, SOCK_STREAM);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->reachable());
  EXPECT_TRUE(second->reachable());
  first->Close();
  EXPECT_EQ(Connect(), absl::StatusCode::kOk);
  second->Close();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixListenerTest, AFileThatADeadProcessLeftIsNobody) {
  const auto listener = UnixListener::Listen(path_, SOCK_STREAM);
  ASSERT_TRUE(listener.ok());
  std::filesystem::create_hard_link(path_, folder_ / "other");
  const std::string left = folder_ / "other";
  ASSERT_EQ(shutdown(listener->fd(), SHUT_RDWR), 0);  // as the kernel does it at its end
  EXPECT_EQ(ConnectUnix(left, SOCK_STREAM).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(UnixListenerTest, PathsThatCannotBe) {
  const std::string long_path(200, 'x');
  EXPECT_EQ(UnixListener::Listen(long_path, SOCK_STREAM).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectUnix(long_path, SOCK_STREAM).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Listen("/nowhere/socket", SOCK_STREAM).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace flotilla
