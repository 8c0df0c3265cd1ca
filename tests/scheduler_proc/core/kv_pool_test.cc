#include "scheduler_proc/core/kv_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla {
namespace {

using ::testing::ElementsAre;

class KvPoolTest : public ::testing::Test {
 protected:
  KvPoolTest() { kv_.Reset(8); }

  Req MakeReq(std::vector<int32_t> tokens, const std::string& salt = "") {
    Req req;
    req.SetTokens(std::move(tokens));
    req.prompt_len = req.prefill_len = req.len();
    req.spec.cache_salt = salt;
    kv_.Attach(&req);
    return req;
  }
  // Runs the request's whole prompt.
  void Compute(Req* req) {
    kv_.TakePrefix(req);
    ASSERT_TRUE(kv_.Grow(req, req->len()));
    req->num_computed = req->num_scheduled = req->len();
  }
  Status Ledger(std::vector<Req*> holders) { return kv_.CheckLedger(holders); }

  KvPool kv_{/*page_size=*/2, /*enable_prefix_cache=*/true};
};

TEST_F(KvPoolTest, KeepsFullComputedPagesAndSharesThem) {
  Req a = MakeReq({1, 2, 3, 4, 5});
  Compute(&a);
  EXPECT_EQ(kv_.available_pages(), 5u);
  kv_.Release(&a, 5);
  EXPECT_EQ(kv_.cache().total_pages(), 2u);  // the half page is free
  EXPECT_EQ(kv_.available_pages(), 8u);
  Req b = MakeReq({1, 2, 3, 4, 9});
  EXPECT_EQ(kv_.PeekPrefix(b), 2u);
  kv_.TakePrefix(&b);
  EXPECT_EQ(b.num_computed, 4u);
  EXPECT_EQ(kv_.available_pages(), 6u);
  EXPECT_TRUE(Ledger({&b}).ok()) << Ledger({&b});
}

TEST_F(KvPoolTest, LeavesTheLastTokenToCompute) {
  Req a = MakeReq({1, 2, 3, 4});
  Compute(&a);
  kv_.Release(&a, 4);
  Req b = MakeReq({1, 2, 3, 4});
  kv_.TakePrefix(&b);
  EXPECT_EQ(b.num_computed, 2u);
}

TEST_F(KvPoolTest, PromptLogprobsFillTheCacheButDoNotReadIt) {
  Req a = MakeReq({1, 2, 3, 4, 5});
  a.spec.sampling.num_prompt_logprobs = 0;
  Compute(&a);
  kv_.CacheUnfinished(&a);
  EXPECT_EQ(a.num_shared, 2u);
  Req b = MakeReq({1, 2, 3, 4, 5});
  EXPECT_EQ(kv_.PeekPrefix(b), 2u);
  b.spec.sampling.num_prompt_logprobs = 0;
  EXPECT_EQ(kv_.PeekPrefix(b), 0u);
  b.next_prompt_logprob = 5;  // all told, before a retraction
  EXPECT_EQ(kv_.PeekPrefix(b), 2u);
}

TEST_F(KvPoolTest, GrowEvictsAndTakesAllOrNothing) {
  Req a = MakeReq({1, 2, 3, 4});
  Compute(&a);
  kv_.Release(&a, 4);
  Req b = MakeReq({7, 7, 7});
  kv_.TakePrefix(&b);
  EXPECT_FALSE(kv_.Grow(&b, 17));
  EXPECT_EQ(kv_.cache().total_pages(), 2u);
  EXPECT_TRUE(kv_.Grow(&b, 14));
  EXPECT_EQ(kv_.cache().total_pages(), 1u);
  EXPECT_TRUE(kv_.Grow(&b, 16));
  EXPECT_EQ(kv_.cache().total_pages(), 0u);
  EXPECT_EQ(kv_.available_pages(), 0u);
  EXPECT_TRUE(Ledger({&b}).ok()) << Ledger({&b});
}

TEST_F(KvPoolTest, ASecondCopyStaysPrivateUntilTheEnd) {
  Req a = MakeReq({1, 2, 3, 4, 5}), b = MakeReq({1, 2, 3, 4, 6});
  Compute(&a);
  Compute(&b);
  kv_.CacheUnfinished(&a);
  kv_.CacheUnfinished(&b);
  EXPECT_EQ(a.num_shared, 2u);
  EXPECT_EQ(b.num_shared, 0u);
  EXPECT_TRUE(Ledger({&a, &b}).ok()) << Ledger({&a, &b});
  kv_.Release(&b, 5);
  EXPECT_EQ(kv_.cache().total_pages(), 2u);
  EXPECT_EQ(kv_.available_pages(), 5u);
  EXPECT_TRUE(Ledger({&a}).ok()) << Ledger({&a});
}

TEST_F(KvPoolTest, ReleaseCachesNoFurtherThanValid) {
  Req a = MakeReq({1, 2, 3, 4, 5, 6});
  Compute(&a);
  kv_.Release(&a, 3);
  EXPECT_EQ(kv_.cache().total_pages(), 1u);
  EXPECT_EQ(kv_.allocator().num_free(), 7u);
}

TEST_F(KvPoolTest, WithoutTheCacheAllPagesAreFreed) {
  KvPool kv(2, /*enable_prefix_cache=*/false);
  kv.Reset(8);
  Req a;
  a.SetTokens({1, 2, 3, 4, 5});
  kv.Attach(&a);
  kv.TakePrefix(&a);
  ASSERT_TRUE(kv.Grow(&a, 5));
  a.num_computed = 5;
  kv.CacheUnfinished(&a);
  EXPECT_EQ(a.num_shared, 0u);
  kv.Release(&a, 5);
  EXPECT_EQ(kv.allocator().num_free(), 8u);
}

TEST_F(KvPoolTest, TheLedgerSeesLostAndDoublePages) {
  Req a = MakeReq({1, 2, 3, 4, 5});
  Compute(&a);
  EXPECT_TRUE(Ledger({&a}).ok());
  EXPECT_FALSE(Ledger({}).ok());
  Req thief;
  thief.SetTokens(a.token_ids);
  thief.pages = a.pages;
  thief.CountPages();
  thief.num_shared = a.num_shared;
  thief.last_node = a.last_node;
  thief.root = a.root;
  thief.num_computed = a.num_computed;
  EXPECT_FALSE(Ledger({&a, &thief}).ok());
  std::swap(a.pages[0], a.pages[1]);
  EXPECT_TRUE(Ledger({&a}).ok());
  kv_.CacheUnfinished(&a);
  std::swap(a.pages[0], a.pages[1]);  // no longer what the tree says
  EXPECT_FALSE(Ledger({&a}).ok());
}

}  // namespace
}  // namespace flotilla
