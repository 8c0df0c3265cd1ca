// The launcher of a host whose processes work for those of another host, over fake processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deploy/launcher/supervisor.h"
#include "tests/deploy/launcher_fixture.h"

namespace flotilla {
namespace {

class SupervisorHostsTest : public LauncherTest {};

// As a head whose rank elsewhere crashes while it loads, or a host whose head is started again.
TEST_F(SupervisorHostsTest, AsOftenAsItsPeerIsLostItIsStartedAgain) {
  Misbehave("worker-0", "peer-lost");
  Start({"--tp", "1"});
  EXPECT_TRUE(
      WaitUntil([&] { return Count("start", "worker-0") > Supervisor::kMaxStartFailures + 2; }));
  Behave("worker-0");
  EXPECT_THAT(ReadyLine(), testing::StartsWith("ready "));
  EXPECT_EQ(Count("start", "scheduler"), 1u);
}

}  // namespace
}  // namespace flotilla
