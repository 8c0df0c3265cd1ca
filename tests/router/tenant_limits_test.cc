#include "router/admission/tenant_limits.h"

#include <gtest/gtest.h>

namespace flotilla {
namespace {

class TenantLimitsTest : public ::testing::Test {
 protected:
  // What was refused, after how many ms it may be tried again; 0: it may begin.
  int64_t Refused(const Tenant& tenant) {
    auto entered = limits_->Enter(std::make_shared<Tenant>(tenant));
    if (auto* caller = std::get_if<Caller>(&entered)) {
      last_ = *caller;
      return 0;
    }
    const ApiError& error = std::get<ApiError>(entered);
    EXPECT_EQ(error.code, absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(error.type_code, "rate_limit_exceeded");
    return error.retry_after_ms;
  }

  FakeClock clock_{kNsPerSecond};
  prometheus::Registry registry_;
  std::shared_ptr<TenantLimits> limits_ = std::make_shared<TenantLimits>(&clock_, &registry_);
  Caller last_;
};

TEST_F(TenantLimitsTest, NobodyHasNoLimits) {
  const Caller nobody;
  EXPECT_EQ(nobody.tenant(), "");
  nobody.Charge(1000);
}

TEST_F(TenantLimitsTest, WithoutLimitsAnyNumberMayBegin) {
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(Refused({.name = "a"}), 0);
  EXPECT_EQ(last_.tenant(), "a");
}

TEST_F(TenantLimitsTest, RequestsAMinute) {
  const Tenant tenant = {.name = "a", .requests_per_minute = 2};
  EXPECT_EQ(Refused(tenant), 0);
  EXPECT_EQ(Refused(tenant), 0);
  EXPECT_EQ(Refused(tenant), 30'000);
  EXPECT_EQ(Refused({.name = "b", .requests_per_minute = 2}), 0) << "another's";
  clock_.AdvanceNs(29 * kNsPerSecond);
  EXPECT_EQ(Refused(tenant), 1000);
  clock_.AdvanceNs(kNsPerSecond);
  EXPECT_EQ(Refused(tenant), 0);
  EXPECT_GT(Refused(tenant), 0);
  clock_.AdvanceNs(int64_t{3600} * kNsPerSecond);
  EXPECT_EQ(Refused(tenant), 0);
  EXPECT_EQ(Refused(tenant), 0);
  EXPECT_GT(Refused(tenant), 0) << "an hour fills no more than a minute";
}

TEST_F(TenantLimitsTest, SaysWhoAskedForHowMuch) {
  const Tenant tenant = {.name = "a", .concurrency = 1};
  EXPECT_EQ(Refused(tenant), 0);
  last_.Charge(70);
  EXPECT_GT(Refused(tenant), 0);
  EXPECT_EQ(Refused({.name = "b"}), 0);
  const std::string page = RenderMetrics(registry_);
  const auto has = [&](const char* metric, const char* tenant_name, int value) {
    const std::string line =
        StrCat("flotilla_router_", metric, "{tenant=\"", tenant_name, "\"} ", value, "\n");
    EXPECT_NE(page.find(line), std::string::npos) << line << page;
  };
  has("tenant_requests_total", "a", 1);
  has("tenant_requests_refused_total", "a", 1);
  has("tenant_tokens_total", "a", 70);
  has("tenant_requests_in_flight", "a", 0);  // last_ is b's now
  has("tenant_requests_in_flight", "b", 1);
  has("tenant_tokens_total", "b", 0);
}

TEST_F(TenantLimitsTest, TokensAMinute) {
  const Tenant tenant = {.name = "a", .tokens_per_minute = 60};
  EXPECT_EQ(Refused(tenant), 0);
  last_.Charge(70);
  EXPECT_EQ(Refused(tenant), 11'000) << "10 too many, and one to begin with";
  clock_.AdvanceNs(11 * kNsPerSecond);
  EXPECT_EQ(Refused(tenant), 0);
}

TEST_F(TenantLimitsTest, EachTokenIsChargedOnce) {
  const Tenant tenant = {.name = "a", .tokens_per_minute = 60};
  EXPECT_EQ(Refused(tenant), 0);
  TokenBill bill;
  bill.ChargeUpTo(50, last_);
  bill.ChargeUpTo(40, last_);
  bill.PaidUpTo(60);
  bill.ChargeUpTo(69, last_);
  EXPECT_EQ(Refused(tenant), 0) << "59 of 60";
  TokenBill(100).ChargeUpTo(101, last_);
  EXPECT_EQ(Refused(tenant), 1000);
}

TEST_F(TenantLimitsTest, ADebtorHasNoPlace) {
  const Tenant tenant = {.name = "a", .tokens_per_minute = 60, .concurrency = 1};
  EXPECT_EQ(Refused(tenant), 0);
  const Caller debtor = last_.Debtor();
  EXPECT_EQ(debtor.tenant(), "a");
  last_ = Caller();
  EXPECT_EQ(Refused(tenant), 0);
  debtor.Charge(60);
  last_ = Caller();
  EXPECT_EQ(Refused(tenant), 1000);
  EXPECT_EQ(Caller().Debtor().tenant(), "");
}

TEST_F(TenantLimitsTest, RequestsAtOnce) {
  const Tenant tenant = {.name = "a", .concurrency = 1};
  EXPECT_EQ(Refused(tenant), 0);
  Caller copy = last_;
  EXPECT_GT(Refused(tenant), 0);
  last_ = Caller();
  EXPECT_GT(Refused(tenant), 0) << "a copy still has the place";
  copy = Caller();
  EXPECT_EQ(Refused(tenant), 0);
}

}  // namespace
}  // namespace flotilla
