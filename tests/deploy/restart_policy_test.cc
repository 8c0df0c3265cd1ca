#include "deploy/launcher/restart_policy.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(RestartPolicyTest, FirstRestartIsImmediateThenDelaysDouble) {
  RestartPolicy policy;
  int64_t now = 1000;
  policy.OnStart();
  EXPECT_EQ(policy.OnExit(now), now);
  for (const int64_t delay_ms : {250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000}) {
    policy.OnStart();
    EXPECT_EQ(policy.OnExit(now), now + delay_ms * kNsPerMs);
  }
  EXPECT_EQ(policy.failures(), 10u);
}

TEST(RestartPolicyTest, ALostPeerIsNoFailureOfItsOwn) {
  RestartPolicy policy;
  policy.OnStart();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(policy.OnPeerLost(7), 7 + RestartPolicy::kFirstDelayNs);
  EXPECT_EQ(policy.failures(), 0u);
  policy.OnReady(7);
  const int64_t later = 7 + RestartPolicy::kHealthyNs;
  EXPECT_EQ(policy.OnPeerLost(later), later) << "a client waits";
}

TEST(RestartPolicyTest, AHealthyWhileForgivesWhatWasBefore) {
  RestartPolicy policy;
  policy.OnStart();
  policy.OnExit(1);
  policy.OnStart();
  policy.OnExit(2);
  policy.OnStart();
  policy.OnReady(2);
  const int64_t later = 2 + RestartPolicy::kHealthyNs;
  policy.OnReady(later);
  EXPECT_EQ(policy.OnExit(later), later);
  EXPECT_EQ(policy.failures(), 1u);
}

TEST(RestartPolicyTest, ALongLoadIsNoHealthyWhile) {
  RestartPolicy policy;
  int64_t now = 0;
  policy.OnStart();
  policy.OnReady(now);
  now += RestartPolicy::kHealthyNs;
  EXPECT_EQ(policy.OnExit(now), now);
  for (uint32_t failures = 2; failures <= 5; ++failures) {
    policy.OnStart();
    now += 10 * RestartPolicy::kHealthyNs;
    EXPECT_GT(policy.OnExit(now), now);
    EXPECT_EQ(policy.failures(), failures);
  }
  policy.OnStart();
  policy.OnReady(now + 9 * RestartPolicy::kHealthyNs);
  policy.OnExit(now + 10 * RestartPolicy::kHealthyNs - 1);
  EXPECT_EQ(policy.failures(), 6u) << "ready, but not for long";
}

TEST(RestartPolicyTest, ManyFailuresNeverOverflowTheDelay) {
  RestartPolicy policy;
  for (int i = 0; i < 1000; ++i) {
    policy.OnStart();
    EXPECT_LE(policy.OnExit(i), i + RestartPolicy::kMaxDelayNs);
  }
}

}  // namespace
}  // namespace flotilla
