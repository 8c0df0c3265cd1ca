#include "scheduler_proc/core/tenant_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

class TenantOrderTest : public ::testing::Test {
 protected:
  ~TenantOrderTest() override { order_.reset(); }

  Req* Add(const std::string& tenant, uint32_t prompt_tokens = 10) {
    Req& req = reqs_.emplace_back();
    req.seq = reqs_.size();
    req.SetTokens(std::vector<int32_t>(prompt_tokens, 1));
    req.spec.cache_salt = tenant;
    order_->Add(&req);
    return &req;
  }
  // The next one, admitted; `tokens` are produced at once.
  Req* Serve(uint32_t tokens = 0) {
    order_->BeginRound();
    Req* req = order_->Next();
    if (req == nullptr) return nullptr;
    order_->OnAdmitted(*req);
    req->was_scheduled = true;
    order_->Remove(req);
    for (uint32_t i = 0; i < tokens; ++i) order_->OnToken(*req);
    return req;
  }
  std::string ServeTenant(uint32_t tokens = 0) { return Serve(tokens)->spec.cache_salt; }

  std::unique_ptr<TenantOrder> order_ = std::make_unique<TenantOrder>(1, 2);
  std::deque<Req> reqs_;
};

TEST_F(TenantOrderTest, ServesTheLeastServedByArrivalWithinIt) {
  for (int i = 0; i < 6; ++i) Add("a");
  Req* first = Add("b", 30);
  Req* second = Add("b", 30);
  EXPECT_EQ(ServeTenant(), "a");   // 10; equal: the tenant that came first
  EXPECT_EQ(Serve(), first);       // 30
  EXPECT_EQ(ServeTenant(), "a");   // 20
  EXPECT_EQ(ServeTenant(5), "a");  // 30 and 2 · 5
  EXPECT_EQ(order_->counter("a"), 40);
  EXPECT_EQ(Serve(), second);
  EXPECT_EQ(order_->counter("b"), 60);
  EXPECT_EQ(order_->size(), 3u);
}

TEST_F(TenantOrderTest, WhatTheCacheHoldsAndRetractionsAreFree) {
  Req* req = Add("a", 100);
  req->num_computed = req->num_scheduled = 64;
  EXPECT_EQ(Serve(), req);
  EXPECT_EQ(order_->counter("a"), 36);
  order_->OnAdmitted(*req);  // again, after a retraction
  EXPECT_EQ(order_->counter("a"), 36);
}

TEST_F(TenantOrderTest, ARoundGivesEachOnceAndFollowsTheCounters) {
  Req* a1 = Add("a");
  Req* a2 = Add("a");
  Req* b1 = Add("b");
  Req* b2 = Add("b");
  std::vector<Req*> given;
  order_->BeginRound();
  while (Req* req = order_->Next()) {
    given.push_back(req);
    order_->OnAdmitted(*req);
  }
  EXPECT_THAT(given, ElementsAre(a1, b1, a2, b2));
  given.clear();
  order_->BeginRound();  // passed over: nothing is charged
  while (Req* req = order_->Next()) given.push_back(req);
  EXPECT_THAT(given, ElementsAre(a1, a2, b1, b2));
}

TEST_F(TenantOrderTest, ANewTenantIsLiftedToTheLeastOfThoseThatWait) {
  for (int i = 0; i < 30; ++i) Add("a");
  for (int i = 0; i < 30; ++i) Add("b", 15);
  for (int i = 0; i < 20; ++i) Serve();
  const double least = std::min(order_->counter("a"), order_->counter("b"));
  EXPECT_GT(least, 100);
  Add("late");
  EXPECT_EQ(order_->counter("late"), least);
  EXPECT_EQ(order_->counter("nobody"), 0);
}

TEST_F(TenantOrderTest, AnIdleTenantSavesNothingUp) {
  Add("idle");
  EXPECT_EQ(ServeTenant(), "idle");
  for (int i = 0; i < 9; ++i) Add("busy");
  for (int i = 0; i < 9; ++i) EXPECT_EQ(ServeTenant(), "busy");
  // Nobody waits: as much as the last to wait, and what it is still given counts.
  order_->OnToken(reqs_.back());
  Add("idle");
  EXPECT_EQ(order_->counter("idle"), order_->counter("busy"));
  EXPECT_EQ(order_->counter("busy"), 10 + 9 * 10 + 2);
}

TEST_F(TenantOrderTest, ATenantThatWasServedMoreKeepsItsCounter) {
  Add("a", 50);
  Req* waits = Add("b");
  EXPECT_EQ(ServeTenant(), "a");
  Add("a");
  EXPECT_EQ(order_->counter("a"), 50);
  EXPECT_EQ(Serve(), waits);
}

TEST_F(TenantOrderTest, IdleTenantsAreBoundedAndTheMostServedKept) {
  constexpr int kTenants = 3 * TenantOrder::kMaxIdleTenants;
  Add("", 1);
  for (int i = 0; i < kTenants; ++i) {
    Req* req = Add(std::to_string(i), 1 + i % 2);
    while (Serve() != nullptr) {
    }
    order_->OnForgotten(*req);
    ASSERT_LE(order_->num_tenants(), 2 * TenantOrder::kMaxIdleTenants);
  }
  EXPECT_GT(order_->counter(std::to_string(kTenants - 1)), 0);
  EXPECT_EQ(order_->counter("0"), 0);  // forgotten
  Add("0");
  EXPECT_GE(order_->counter("0"), order_->counter(std::to_string(kTenants - 1)));
}

}  // namespace
}  // namespace flotilla
