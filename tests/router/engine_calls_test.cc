// What a router asks a replica beside its stream: that a call leaves nothing on gRPC's threads.
#include "router/fleet/engine_calls.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <future>
#include <thread>

#include "tests/fakes/fake_engine_service.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

using Answered = std::function<void()>;

// Makes the call, which is then the only one to have the only channel; the thread that lets go of
// it. io's is the caller's.
std::thread::id WhereItEnds(std::function<void(const EngineCaller&, Answered)> call) {
  FakeEngineServiceOptions options;
  options.address = "127.0.0.1:0";
  FakeEngineService engine(options);
  boost::asio::io_context io;
  auto work = boost::asio::make_work_guard(io);
  CallTracker calls;
  const auto ended = std::make_shared<std::promise<std::thread::id>>();
  {
    auto stub = v1::Engine::NewStub(grpc::CreateChannel(StrCat("127.0.0.1:", engine.port()),
                                                        grpc::InsecureChannelCredentials()));
    const std::shared_ptr<v1::Engine::Stub> shared(stub.release(), [ended](v1::Engine::Stub* last) {
      ended->set_value(std::this_thread::get_id());
      delete last;
    });
    call({shared, io.get_executor(), &calls}, [&work] { work.reset(); });
  }
  io.run_for(kPatience);
  calls.WaitForZero();
  std::future<std::thread::id> where = ended->get_future();
  EXPECT_EQ(where.wait_for(kPatience), std::future_status::ready);
  return where.get();
}

TEST(EngineCallsTest, FindKeyedEndsWhereItIsAnswered) {
  const auto find = [](const EngineCaller& caller, const Answered& answered) {
    FindKeyed(caller, "key", kPatience, [answered](bool found) {
      EXPECT_FALSE(found);
      answered();
    });
  };
  EXPECT_EQ(WhereItEnds(find), std::this_thread::get_id());
}

TEST(EngineCallsTest, FetchLargeResultEndsWhereItIsAnswered) {
  const auto fetch = [](const EngineCaller& caller, const Answered& answered) {
    FetchLargeResult(caller, 1, [answered](const auto& entries) {
      EXPECT_EQ(entries, nullptr);
      answered();
    });
  };
  EXPECT_EQ(WhereItEnds(fetch), std::this_thread::get_id());
}

}  // namespace
}  // namespace flotilla
