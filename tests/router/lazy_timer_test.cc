#include "router/base/lazy_timer.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <memory>

namespace flotilla {
namespace {

using std::chrono::milliseconds;

LazyTimer::Clock::time_point In(int ms) { return LazyTimer::Clock::now() + milliseconds(ms); }

TEST(LazyTimerTest, CallsAtTheLastTimeThatWasSet) {
  boost::asio::io_context io;
  const auto begin = LazyTimer::Clock::now();
  std::vector<LazyTimer::Clock::duration> calls;
  LazyTimer timer(io.get_executor(), [&] { calls.push_back(LazyTimer::Clock::now() - begin); });
  timer.Set(In(1));
  timer.Set(In(30));
  io.run();
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_GE(calls[0], milliseconds(30));
  timer.Set(In(100'000));
  timer.Set(In(1));
  io.restart();
  io.run();
  EXPECT_EQ(calls.size(), 2u);
}

TEST(LazyTimerTest, ClearedIsNotCalledUntilItIsSetAnew) {
  boost::asio::io_context io;
  int calls = 0;
  LazyTimer timer(io.get_executor(), [&] { ++calls; });
  timer.Set(In(1));
  timer.Clear();
  io.run();
  EXPECT_EQ(calls, 0);
  timer.Set(In(1));
  io.restart();
  io.run();
  EXPECT_EQ(calls, 1);
}

TEST(LazyTimerTest, CanBeSetByWhatItCalls) {
  boost::asio::io_context io;
  int calls = 0;
  std::unique_ptr<LazyTimer> timer;
  timer = std::make_unique<LazyTimer>(io.get_executor(), [&] {
    if (++calls < 3) timer->Set(In(1));
  });
  timer->Set(In(0));
  io.run();
  EXPECT_EQ(calls, 3);
}

TEST(LazyTimerTest, MayGoWhileItWaitsOrIsCalled) {
  boost::asio::io_context io;
  int calls = 0;
  auto waits = std::make_unique<LazyTimer>(io.get_executor(), [&] { ++calls; });
  waits->Set(In(0));
  waits.reset();
  io.run();
  EXPECT_EQ(calls, 0);
  std::unique_ptr<LazyTimer> called;
  called = std::make_unique<LazyTimer>(io.get_executor(), [&] {
    ++calls;
    called.reset();
  });
  called->Set(In(0));
  io.restart();
  io.run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace flotilla
