#include "deploy/launcher/restart_policy.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

TEST(RestartPolicyTest, FirstRestartIsImmediateThenDelaysDouble) {
  RestartPolicy policy;
  int64_t now = 1000;
  policy.OnStart(now);
  EXPECT_EQ(policy.OnExit(now), now);
  for (const int64_t delay_ms : {250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000}) {
    policy.OnStart(now);
    EXPECT_EQ(policy.OnExit(now), now + delay_ms * kNsPerMs);
  }
  EXPECT_EQ(policy.failures(), 10u);
}

TEST(RestartPolicyTest, AHealthyWhileForgivesWhatWasBefore) {
  RestartPolicy policy;
  policy.OnStart(0);
  policy.OnExit(1);
  policy.OnStart(1);
  policy.OnExit(2);
  policy.OnStart(2);
  const int64_t later = 2 + RestartPolicy::kHealthyNs;
  EXPECT_EQ(policy.OnExit(later), later);
  EXPECT_EQ(policy.failures(), 1u);
}

TEST(RestartPolicyTest, ManyFailuresNeverOverflowTheDelay) {
  RestartPolicy policy;
  for (int i = 0; i < 1000; ++i) {
    policy.OnStart(i);
    EXPECT_LE(policy.OnExit(i), i + RestartPolicy::kMaxDelayNs);
  }
}

}  // namespace
}  // namespace flotilla
