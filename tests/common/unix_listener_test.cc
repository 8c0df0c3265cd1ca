#include "common/base/unix_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/support/patience.h"

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

// A successor that came just then would take it for nobody.
TEST_F(UnixListenerTest, WhileItIsReplacedSomebodyListens) {
  auto first = UnixListener::Listen(path_, SOCK_STREAM);
  ASSERT_TRUE(first.ok());
  std::atomic<bool> stop = false;
  std::atomic<int64_t> looks = 0, missing = 0;
  std::thread watcher([&] {
    for (; !stop; ++looks) missing += access(path_.c_str(), F_OK) != 0;
  });
  const auto end = std::chrono::steady_clock::now() + kPatience;
  int rounds = 0;
  for (; (rounds < 200 || looks < 1000) && std::chrono::steady_clock::now() < end; ++rounds) {
    auto next = UnixListener::Listen(path_, SOCK_STREAM);
    EXPECT_TRUE(next.ok()) << next.status();
    if (next.ok()) *first = *std::move(next);
  }
  stop = true;
  watcher.join();
  EXPECT_GE(rounds, 200);
  EXPECT_GE(looks, 1000);
  EXPECT_EQ(missing, 0);
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
