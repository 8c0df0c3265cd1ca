#include "router/handoff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "common/base/fd_message.h"
#include "common/base/listen.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

uint64_t InodeOf(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_ino;
}

class HandoffTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = "/tmp/handoff-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/socket";
    http_ = ListenTcp("127.0.0.1", 0, &places_.http_port).value();
    grpc_ = ListenTcp("127.0.0.1", 0, &places_.grpc_port).value();
    metrics_ = ListenTcp("127.0.0.1", 0, &places_.metrics_port.emplace()).value();
  }
  void TearDown() override {
    server_.reset();  // it would put its socket back
    std::filesystem::remove_all(folder_);
  }

  void Serve() {
    auto server = HandoffServer::Start(
        {path_, "127.0.0.1", http_.get(), grpc_.get(), metrics_.get(), [this] { ++relieved_; }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void ExpectRefusal(const ListeningPlaces& places, const std::string& word) {
    const Status status = Predecessor::Meet(path_, places).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }

  std::filesystem::path folder_;
  std::string path_;
  UniqueFd http_, grpc_, metrics_;
  ListeningPlaces places_{.host = "127.0.0.1"};
  std::atomic<int> relieved_ = 0;
  std::unique_ptr<HandoffServer> server_;
};

TEST_F(HandoffTest, NobodyIsThere) {
  EXPECT_TRUE(absl::IsNotFound(Predecessor::Meet(path_, places_).status()));
}

TEST_F(HandoffTest, ASuccessorGetsTheSocketsAndThenThePath) {
  Serve();
  auto met = Predecessor::Meet(path_, places_);
  ASSERT_TRUE(met.ok()) << met.status();
  const ListeningSockets sockets = (*met)->TakeSockets();
  EXPECT_EQ(InodeOf(sockets.http.get()), InodeOf(http_.get()));
  EXPECT_EQ(InodeOf(sockets.grpc.get()), InodeOf(grpc_.get()));
  EXPECT_EQ(InodeOf(sockets.metrics.get()), InodeOf(metrics_.get()));
  EXPECT_TRUE((*met)->alive());
  const auto former = std::move(server_);
  Serve();  // at the same path
  EXPECT_EQ(relieved_, 0);
  (*met)->Relieve();
  EXPECT_EQ(relieved_, 1);
  EXPECT_TRUE(Predecessor::Meet(path_, places_).ok());
}

TEST_F(HandoffTest, AnyPortIsThePredecessors) {
  Serve();
  EXPECT_TRUE(Predecessor::Meet(path_, {.host = "127.0.0.1"}).ok());
}

TEST_F(HandoffTest, OtherPlacesAreRefusedByTheFlagsName) {
  Serve();
  ListeningPlaces other = places_;
  other.host = "0.0.0.0";
  ExpectRefusal(other, "--host=0.0.0.0");
  other = places_;
  other.http_port = 1;
  ExpectRefusal(other, "--port=1: ");
  other = places_;
  other.grpc_port = 1;
  ExpectRefusal(other, "--grpc-port=1: ");
  other = places_;
  other.metrics_port = 1;
  ExpectRefusal(other, "--metrics-port=1: ");
  EXPECT_EQ(relieved_, 0);
}

TEST_F(HandoffTest, WhoEndsOrTalksNonsenseTakesNothing) {
  Serve();
  for (const std::string_view word : {"", "servings", "s"}) {
    auto connection = ConnectUnix(path_, SOCK_SEQPACKET);
    ASSERT_TRUE(connection.ok());
    ASSERT_TRUE(ReceiveFdMessage(connection->get(), 100).has_value());
    if (word.empty()) continue;
    EXPECT_TRUE(SendFdMessage(connection->get(), word, {}));
    EXPECT_FALSE(ReceiveFdMessage(connection->get(), 100).has_value()) << word;
  }
  EXPECT_EQ(relieved_, 0);
  auto met = Predecessor::Meet(path_, places_);
  ASSERT_TRUE(met.ok()) << met.status();
  (*met)->Relieve();
  EXPECT_EQ(relieved_, 1);
}

// Its last word may be read when it is dead already, and its socket is at the path.
TEST_F(HandoffTest, ASuccessorThatDiesAfterItsLastWordTakesNothing) {
  Serve();
  {
    const auto stuck = ConnectUnix(path_, SOCK_SEQPACKET);  // served first, until it ends
    const auto dead = ConnectUnix(path_, SOCK_SEQPACKET);
    ASSERT_TRUE(stuck.ok() && dead.ok());
    EXPECT_TRUE(SendFdMessage(dead->get(), "serving", {}));
  }
  auto met = Predecessor::Meet(path_, places_);
  ASSERT_TRUE(met.ok()) << met.status();
  EXPECT_EQ(relieved_, 0);
}

// Which it had put at the path, in the place of the one that serves on.
TEST_F(HandoffTest, AfterADeadSuccessorsSocketThePathIsThePredecessorsAgain) {
  Serve();
  auto met = Predecessor::Meet(path_, places_);
  ASSERT_TRUE(met.ok()) << met.status();
  auto at_the_path = UnixListener::Listen(path_, SOCK_SEQPACKET);
  ASSERT_TRUE(at_the_path.ok());
  met->reset();
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (at_the_path->reachable() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_TRUE(Predecessor::Meet(path_, places_).ok());
  EXPECT_EQ(relieved_, 0);
}

// It has the sockets, so it goes on alone.
TEST_F(HandoffTest, APredecessorThatEndsHoldsNobodyUp) {
  Serve();
  auto met = Predecessor::Meet(path_, places_);
  ASSERT_TRUE(met.ok());
  server_.reset();
  EXPECT_FALSE((*met)->alive());
  (*met)->Relieve();
  EXPECT_EQ(relieved_, 0);
}

TEST_F(HandoffTest, WhatIsNoHandoffIsRefused) {
  const auto listener = UnixListener::Listen(path_, SOCK_SEQPACKET);
  ASSERT_TRUE(listener.ok());
  const int two[] = {http_.get(), grpc_.get()};
  const struct {
    std::string bytes;
    std::span<const int> fds;
  } cases[] = {
      {"flotilla-handoff 2 127.0.0.1", two}, {"flotilla-handoff 1 127.0.0.1", {}}, {"hello", two}};
  for (const auto& each : cases) {
    StatusOr<std::unique_ptr<Predecessor>> met = nullptr;
    std::thread successor([&] { met = Predecessor::Meet(path_, places_); });
    const UniqueFd connection(accept4(listener->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(SendFdMessage(connection.get(), each.bytes, each.fds));
    successor.join();
    EXPECT_TRUE(absl::IsDataLoss(met.status())) << each.bytes << ": " << met.status();
  }
}

}  // namespace
}  // namespace flotilla
