// The router's index against the replica's own tree, and its bound.
#include "router/fleet/page_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "scheduler_proc/core/radix_cache.h"
#include "scheduler_proc/exchange/cache_board.h"

namespace flotilla {
namespace {

constexpr uint32_t kPageSize = 4;
constexpr uint32_t kPages = 200;

// A prefix cache under random work, whose events reach a router in pieces, now and then.
class Replica {
 public:
  explicit Replica(uint32_t seed)
      : tenant_(seed % 2 == 0 ? "" : "acme"), random_(seed), index_(100'000), board_(kPageSize) {
    cache_.set_page_log(&log_);
    Reset();
  }

  void Step() {
    const uint32_t dice = static_cast<uint32_t>(random_() % 100);
    if (dice < 60) {
      Insert(MakePrompt());
    } else if (dice < 90) {
      Evict(static_cast<uint32_t>(random_() % 20));
    } else if (dice == 90) {
      Reset();
    } else {
      std::vector<PageId> pages;
      const NodeId root = cache_.AcquireRoot(tenant_);
      cache_.MatchPrefix(root, MakePrompt(), &pages);  // splits
      cache_.ReleaseRoot(root);
    }
    board_.Publish(&log_);
    if (dice % 3 == 0) TakeAll();
  }

  void TakeAll() {
    bool more = true;
    while (more) {
      v1::Step step;
      more = board_.Take(&cursor_, &step);
      for (const v1::CacheEvent& event : step.cache_events()) index_.Apply(event);
    }
  }
  void Reconnect() {
    index_.Reset();
    cursor_ = {};
  }

  void ExpectSame() {
    ASSERT_EQ(index_.size(), cache_.total_pages());
    const NodeId root = cache_.AcquireRoot(tenant_);
    for (int i = 0; i < 20; ++i) {
      const std::vector<int32_t> prompt = MakePrompt();
      const auto readable = std::span(prompt).first(prompt.size() - 1);
      EXPECT_EQ(index_.Match(PromptPageHashes(tenant_, prompt, kPageSize)),
                cache_.PeekPrefix(root, readable));
      matched_ += cache_.PeekPrefix(root, readable);
    }
    cache_.ReleaseRoot(root);
  }
  uint64_t matched() const { return matched_; }

 private:
  // Few different pages, so that prompts share beginnings.
  std::vector<int32_t> MakePrompt() {
    std::vector<int32_t> prompt;
    const size_t pages = 1 + random_() % 12;
    for (size_t i = 0; i < pages; ++i) {
      const auto token = static_cast<int32_t>(random_() % 2);
      prompt.insert(prompt.end(), kPageSize, token);
    }
    prompt.resize(prompt.size() - random_() % kPageSize);
    return prompt;
  }

  void Insert(std::vector<int32_t> prompt) {
    prompt.resize(prompt.size() / kPageSize * kPageSize);
    const size_t count = prompt.size() / kPageSize;
    if (count == 0) return;
    if (free_.size() < count) Evict(static_cast<uint32_t>(count - free_.size()));
    const std::vector<PageId> pages(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    const NodeId root = cache_.AcquireRoot(tenant_);
    // Where the tree has these tokens already, it gives the pages back.
    cache_.Insert(root, prompt, pages, &free_);
    cache_.ReleaseRoot(root);
  }
  void Evict(uint32_t count) { cache_.Evict(count, &free_); }
  void Reset() {
    cache_.Reset(kPages, kPageSize);
    free_.resize(kPages);
    std::iota(free_.begin(), free_.end(), 0);
  }

  const std::string tenant_;
  std::mt19937 random_;
  RadixCache cache_;
  std::vector<PageId> free_;
  PageLog log_;
  PageIndex index_;
  CacheBoard board_;
  CacheBoard::Cursor cursor_;
  uint64_t matched_ = 0;
};

TEST(PageIndexTest, HoldsWhatTheReplicasTreeHolds) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Replica replica(seed);
    for (int i = 0; i < 500; ++i) {
      replica.Step();
      if (i % 100 == 99) replica.Reconnect();
      if (i % 25 != 24) continue;
      replica.TakeAll();
      replica.ExpectSame();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << i;
    }
    EXPECT_GT(replica.matched(), 100u) << "or nothing was compared";
  }
}

v1::CacheEvent Event(v1::CacheEvent::Kind kind, std::vector<uint64_t> hashes) {
  v1::CacheEvent event;
  event.set_kind(kind);
  event.set_page_size(kPageSize);
  for (const uint64_t hash : hashes) event.add_page_hashes(hash);
  return event;
}

TEST(PageIndexTest, WhatIsBeyondItsBoundIsCounted) {
  PageIndex index(2);
  index.Apply(Event(v1::CacheEvent::STORED, {1, 2, 3}));
  EXPECT_EQ(index.size(), 2u);
  EXPECT_EQ(index.left_out(), 1u);
  EXPECT_EQ(index.Match(std::vector<uint64_t>{1, 2, 3}), 2u);
  index.Apply(Event(v1::CacheEvent::REMOVED, {2, 3}));
  EXPECT_EQ(index.Match(std::vector<uint64_t>{1, 2, 3}), 1u);
}

TEST(PageIndexTest, NothingIsKnownUntilTheReplicaTells) {
  PageIndex index(10);
  EXPECT_EQ(index.page_size(), 0u);
  index.Apply(Event(v1::CacheEvent::STORED, {1}));
  EXPECT_EQ(index.page_size(), kPageSize);
  index.Reset();
  EXPECT_EQ(index.page_size(), 0u);
  EXPECT_EQ(index.size(), 0u);
}

TEST(PageIndexTest, TheLastTokenIsNeverReadFromACache) {
  EXPECT_EQ(PromptPageHashes("", std::vector<int32_t>(8, 1), 4).size(), 1u);
  EXPECT_EQ(PromptPageHashes("", std::vector<int32_t>(9, 1), 4).size(), 2u);
  EXPECT_TRUE(PromptPageHashes("", {}, 4).empty());
  EXPECT_NE(PromptPageHashes("acme", std::vector<int32_t>(9, 1), 4),
            PromptPageHashes("", std::vector<int32_t>(9, 1), 4))
      << "tenants share no pages";
  EXPECT_TRUE(PromptPageHashes("", std::vector<int32_t>(9, 1), 0).empty());
}

}  // namespace
}  // namespace flotilla
