// Where gRPC's calls about texts run. What they answer is in grpc_test.cc and
// text_requests_test.cc.
#include "router/grpc/grpc_texts.h"

#include <grpcpp/test/default_reactor_test_peer.h>
#include <gtest/gtest.h>

#include <future>

namespace flotilla {
namespace {

class GrpcTextsTest : public testing::Test {
 protected:
  static constexpr uint64_t kMaxBytes = 100;

  struct Call {
    grpc::CallbackServerContext context;
    grpc::testing::DefaultReactorTestPeer peer{&context};
  };
  GrpcTextsTest() {
    HandlerContext context;
    context.large_pool = &pool_;
    context.metrics = &metrics_;
    texts_.emplace(context, kMaxBytes);
    boost::asio::post(pool_, [free = go_on_.get_future().share()] { free.wait(); });
  }
  ~GrpcTextsTest() override { FreePool(); }

  void Run(Call* call, uint64_t bytes) {
    EXPECT_EQ(texts_->Run("route", &call->context, bytes,
                          [this] {
                            ++worked_;
                            return grpc::Status::OK;
                          }),
              call->peer.reactor());
  }
  void FreePool() {
    if (!std::exchange(freed_, true)) go_on_.set_value();
    pool_.join();
  }

  prometheus::Registry registry_;
  RouterMetrics metrics_{&registry_};
  boost::asio::thread_pool pool_{1};
  std::promise<void> go_on_;
  bool freed_ = false;
  std::optional<GrpcTexts> texts_;
  std::atomic<int> worked_ = 0;
};

TEST_F(GrpcTextsTest, NoneIsWorkedOnByTheThreadThatBroughtIt) {
  Call call;
  Run(&call, kMaxBytes);
  EXPECT_EQ(worked_, 0);
  EXPECT_FALSE(call.peer.test_status_set());
  EXPECT_EQ(metrics_.in_flight(), 1u) << "a router that drains waits for it";
  FreePool();
  EXPECT_EQ(worked_, 1);
  ASSERT_TRUE(call.peer.test_status_set());
  EXPECT_TRUE(call.peer.test_status().ok());
  EXPECT_EQ(metrics_.in_flight(), 0u);
}

TEST_F(GrpcTextsTest, ThoseThatWaitHaveABound) {
  Call first, second, third;
  Run(&first, kMaxBytes - 1);
  Run(&second, 2);
  ASSERT_TRUE(second.peer.test_status_set()) << "there is no room";
  EXPECT_EQ(second.peer.test_status().error_code(), grpc::StatusCode::UNAVAILABLE);
  Run(&third, 1);
  EXPECT_FALSE(third.peer.test_status_set());
  FreePool();
  EXPECT_EQ(worked_, 2);
}

}  // namespace
}  // namespace flotilla
