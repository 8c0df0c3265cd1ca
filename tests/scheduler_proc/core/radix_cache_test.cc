#include "scheduler_proc/core/radix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RadixCacheTest : public ::testing::Test {
 protected:
  RadixCacheTest() {
    cache_.Reset(64, 2);
    root_ = cache_.AcquireRoot("");
  }
  void TearDown() override { EXPECT_TRUE(cache_.CheckInvariants().ok()); }

  void Insert(const std::vector<int32_t>& tokens, const std::vector<PageId>& pages) {
    cache_.Insert(root_, tokens, pages, &duplicates_);
  }
  std::vector<PageId> Match(const std::vector<int32_t>& tokens) {
    std::vector<PageId> pages;
    cache_.MatchPrefix(root_, tokens, &pages);
    return pages;
  }
  std::vector<PageId> Evict(uint32_t count) {
    std::vector<PageId> pages;
    cache_.Evict(count, &pages);
    return pages;
  }

  RadixCache cache_;
  NodeId root_ = kNoNode;
  std::vector<PageId> duplicates_;
};

TEST_F(RadixCacheTest, MatchesWholePagesOnly) {
  Insert({1, 2, 3, 4, 5, 6}, {10, 11, 12});
  EXPECT_THAT(Match({1, 2, 3, 4, 5, 6, 7}), ElementsAre(10, 11, 12));
  EXPECT_THAT(Match({1, 2, 3, 4, 5}), ElementsAre(10, 11));
  EXPECT_THAT(Match({1, 2, 3, 9, 5, 6}), ElementsAre(10));  // differs within the second page
  EXPECT_THAT(Match({1}), IsEmpty());
  EXPECT_THAT(Match({2, 2}), IsEmpty());
  EXPECT_THAT(Match({}), IsEmpty());
}

TEST_F(RadixCacheTest, SplitsWhereSequencesPart) {
  Insert({1, 1, 2, 2, 3, 3}, {0, 1, 2});
  Insert({1, 1, 2, 2, 4, 4}, {0, 1, 3});
  EXPECT_THAT(duplicates_, IsEmpty());
  EXPECT_THAT(Match({1, 1, 2, 2, 3, 3}), ElementsAre(0, 1, 2));
  EXPECT_THAT(Match({1, 1, 2, 2, 4, 4}), ElementsAre(0, 1, 3));
  EXPECT_EQ(cache_.total_pages(), 4u);
  EXPECT_EQ(cache_.PeekPrefix(root_, std::vector<int32_t>{1, 1, 2, 2, 9, 9}), 2u);
}

TEST_F(RadixCacheTest, HandsBackOtherPagesForTheSameTokens) {
  Insert({1, 1, 2, 2}, {0, 1});
  Insert({1, 1, 2, 2, 3, 3}, {0, 7, 8});  // page 0 is the tree's own
  EXPECT_THAT(duplicates_, ElementsAre(7));
  EXPECT_THAT(Match({1, 1, 2, 2, 3, 3}), ElementsAre(0, 1, 8));
}

TEST_F(RadixCacheTest, EvictsLeastRecentlyUsedFromTheEndOfAPath) {
  Insert({1, 1, 2, 2, 3, 3}, {0, 1, 2});
  Insert({5, 5, 6, 6}, {3, 4});
  Match({1, 1, 2, 2});  // splits; 3,3 stays older than its prefix
  EXPECT_THAT(Evict(1), ElementsAre(2));
  EXPECT_THAT(Evict(1), ElementsAre(4));  // a node is shortened from its end
  EXPECT_THAT(Match({5, 5, 6, 6}), ElementsAre(3));
  EXPECT_THAT(Evict(2), ElementsAre(0, 1));  // 5,5 was just used
  EXPECT_THAT(Evict(9), ElementsAre(3));
  EXPECT_THAT(Evict(1), IsEmpty());
  EXPECT_EQ(cache_.total_pages(), 0u);
}

TEST(RadixCacheLfuTest, EvictsWhatTheFewestRequestsUsed) {
  RadixCache cache(EvictionPolicy::kLfu);
  cache.Reset(64, 1);
  const NodeId root = cache.AcquireRoot("");
  std::vector<PageId> duplicates, pages;
  const auto use = [&](const std::vector<int32_t>& tokens, const std::vector<PageId>& ids) {
    cache.Insert(root, tokens, ids, &duplicates);
    ASSERT_TRUE(cache.CheckInvariants().ok()) << cache.CheckInvariants();
  };
  use({1, 2, 3}, {1, 2, 3});
  use({1, 2, 4}, {1, 2, 4});  // 1, 2 were used twice
  use({7, 8}, {7, 8});
  use({7, 8}, {7, 8});
  use({9}, {9});
  std::vector<PageId> matched;
  cache.MatchPrefix(root, std::vector<int32_t>{1, 2, 3}, &matched);  // recent, but not a use
  for (int i = 0; i < 7; ++i) cache.Evict(1, &pages);
  EXPECT_THAT(pages, ElementsAre(4, 9, 3, 8, 7, 2, 1));
}

TEST_F(RadixCacheTest, LockedPathsStay) {
  Insert({1, 1, 2, 2}, {0, 1});
  Insert({1, 1, 3, 3}, {0, 2});
  std::vector<PageId> pages;
  const NodeId node = cache_.MatchPrefix(root_, std::vector<int32_t>{1, 1, 2, 2}, &pages);
  cache_.Lock(node);
  EXPECT_EQ(cache_.evictable_pages(), 1u);
  EXPECT_THAT(Evict(5), ElementsAre(2));
  EXPECT_THAT(Match({1, 1, 2, 2}), ElementsAre(0, 1));
  cache_.Unlock(node);
  EXPECT_EQ(cache_.evictable_pages(), 2u);
  EXPECT_EQ(Evict(5).size(), 2u);
}

TEST_F(RadixCacheTest, SplittingALockedNodeLocksBothParts) {
  Insert({1, 1, 2, 2, 3, 3}, {0, 1, 2});
  std::vector<PageId> pages;
  const NodeId node = cache_.MatchPrefix(root_, std::vector<int32_t>{1, 1, 2, 2, 3, 3}, &pages);
  cache_.Lock(node);
  EXPECT_THAT(Match({1, 1, 9, 9}), ElementsAre(0));  // splits
  EXPECT_THAT(Evict(5), IsEmpty());
  pages.clear();
  cache_.AppendPath(node, &pages);
  EXPECT_THAT(pages, ElementsAre(0, 1, 2));
  cache_.Unlock(node);
  EXPECT_EQ(cache_.evictable_pages(), 3u);
}

TEST_F(RadixCacheTest, ExtendLockedGrowsAPathOnce) {
  cache_.Lock(root_);
  const NodeId first =
      cache_.ExtendLocked(root_, std::vector<int32_t>{1, 1}, std::vector<PageId>{0});
  ASSERT_NE(first, kNoNode);
  EXPECT_EQ(cache_.ExtendLocked(root_, std::vector<int32_t>{1, 1}, std::vector<PageId>{5}),
            kNoNode);
  const NodeId second =
      cache_.ExtendLocked(first, std::vector<int32_t>{2, 2}, std::vector<PageId>{1});
  EXPECT_THAT(Match({1, 1, 2, 2}), ElementsAre(0, 1));
  EXPECT_EQ(cache_.evictable_pages(), 0u);
  cache_.Unlock(second);  // all of the path
  EXPECT_EQ(cache_.evictable_pages(), 2u);
}

TEST_F(RadixCacheTest, TenantsShareNothing) {
  Insert({1, 1}, {0});
  const NodeId other = cache_.AcquireRoot("tenant");
  EXPECT_NE(other, root_);
  EXPECT_EQ(cache_.PeekPrefix(other, std::vector<int32_t>{1, 1}), 0u);
  cache_.Insert(other, std::vector<int32_t>{1, 1}, std::vector<PageId>{1}, &duplicates_);
  EXPECT_THAT(duplicates_, IsEmpty());
  EXPECT_THAT(Match({1, 1}), ElementsAre(0));
  // The root lives as long as someone uses it or it has pages.
  cache_.ReleaseRoot(other);
  EXPECT_EQ(cache_.AcquireRoot("tenant"), other);
  cache_.ReleaseRoot(other);
  EXPECT_EQ(Evict(9).size(), 2u);
}

TEST_F(RadixCacheTest, FindsTheNodeThatHoldsTheEndOfAMatch) {
  Insert({1, 1, 2, 2, 3, 3}, {0, 1, 2});
  Insert({1, 1, 9, 9}, {0, 3});
  const auto find = [this](std::vector<int32_t> tokens) {
    return cache_.FindPrefix(root_, tokens);
  };
  const auto whole = find({1, 1, 2, 2, 3, 3});
  EXPECT_EQ(whole.num_pages, 3u);
  EXPECT_EQ(find({1, 1, 2, 2, 7, 7}).node, whole.node);
  EXPECT_EQ(find({1, 1, 2, 2, 7, 7}).num_pages, 2u);
  const auto shared = find({1, 1, 7, 7});
  EXPECT_EQ(shared.node, cache_.parent(whole.node));
  EXPECT_EQ(shared.num_pages, cache_.end_pages(shared.node));
  EXPECT_EQ(find({7, 7}).node, root_);
  EXPECT_LT(cache_.born(whole.node), cache_.born(find({1, 1, 9, 9}).node));
  EXPECT_EQ(cache_.born(whole.node), cache_.born(shared.node));
}

TEST_F(RadixCacheTest, ResetEmptiesTheTreeAndKeepsRoots) {
  Insert({1, 1}, {0});
  cache_.Lock(root_);
  cache_.Reset(64, 2);
  EXPECT_EQ(cache_.total_pages(), 0u);
  EXPECT_THAT(Match({1, 1}), IsEmpty());
  Insert({1, 1}, {3});
  EXPECT_THAT(Match({1, 1}), ElementsAre(3));
}

// Random operations beside a naive map from (salt, whole-page prefix) to its page and its use,
// which foretells every match, duplicate and eviction.
class RadixCacheModel {
 public:
  RadixCacheModel(uint64_t seed, uint32_t page_size, EvictionPolicy policy)
      : random_(seed), page_size_(page_size), lfu_(policy == EvictionPolicy::kLfu), cache_(policy) {
    cache_.Reset(kPages, page_size);
    allocator_.Reset(kPages);
    for (const char* salt : {"", "x"}) roots_.push_back(cache_.AcquireRoot(salt));
  }

  void Step() {
    const uint32_t root = Below(2);
    const std::vector<int32_t> tokens = RandomTokens();
    switch (Below(5)) {
      case 0:
        Insert(root, tokens);
        break;
      case 1:
        MatchAndLock(root, tokens);
        break;
      case 2:
        Unlock();
        break;
      case 3:
        Evict();
        break;
      default:
        Extend(tokens);
        break;
    }
    const Status status = cache_.CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(cache_.PeekPrefix(roots_[root], tokens), Expect(root, tokens).size());
    ASSERT_EQ(cache_.total_pages(), map_.size());
    ASSERT_EQ(allocator_.num_free() + cache_.total_pages(), kPages);
  }

 private:
  static constexpr uint32_t kPages = 40;
  using Key = std::pair<uint32_t, std::vector<int32_t>>;
  struct Page {
    PageId page;
    uint32_t locks = 0;
    uint32_t hits = 0;
    uint64_t stamp = 0;  // of the last use; a longer prefix is used before a shorter one
  };
  struct Held {
    NodeId node;
    uint32_t root;
    std::vector<int32_t> tokens;  // whole pages, locked
  };

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  std::vector<int32_t> RandomTokens() {
    std::vector<int32_t> tokens(Below(8 * page_size_ + 1));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = i % page_size_ == page_size_ - 1 ? static_cast<int32_t>(Below(2)) : 0;
    }
    return tokens;
  }
  std::vector<int32_t> Prefix(const std::vector<int32_t>& tokens, size_t pages) const {
    return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(pages * page_size_)};
  }
  std::vector<PageId> Expect(uint32_t root, const std::vector<int32_t>& tokens) const {
    std::vector<PageId> pages;
    for (size_t i = 1; i <= tokens.size() / page_size_; ++i) {
      const auto it = map_.find({root, Prefix(tokens, i)});
      if (it == map_.end()) break;
      pages.push_back(it->second.page);
    }
    return pages;
  }
  // The pages of `tokens`, all cached, longest prefix first.
  template <typename Visit>
  void VisitPath(uint32_t root, const std::vector<int32_t>& tokens, const Visit& visit) {
    for (size_t i = tokens.size() / page_size_; i > 0; --i)
      visit(&map_.at({root, Prefix(tokens, i)}));
  }
  void Touch(uint32_t root, const std::vector<int32_t>& tokens, uint32_t hits) {
    VisitPath(root, tokens, [&](Page* page) {
      page->hits += hits;
      if (page->locks == 0) page->stamp = ++clock_;
    });
  }

  void Insert(uint32_t root, const std::vector<int32_t>& tokens) {
    std::vector<PageId> pages, duplicates, wanted_duplicates;
    const auto count = static_cast<uint32_t>(tokens.size() / page_size_);
    if (!allocator_.Alloc(count, &pages)) return;
    for (uint32_t i = 0; i < count; ++i) {
      const auto [it, fresh] = map_.emplace(Key{root, Prefix(tokens, i + 1)}, Page{pages[i]});
      if (!fresh) wanted_duplicates.push_back(pages[i]);
    }
    Touch(root, Prefix(tokens, count), 1);
    cache_.Insert(roots_[root], Prefix(tokens, count), pages, &duplicates);
    ASSERT_THAT(duplicates, ::testing::UnorderedElementsAreArray(wanted_duplicates));
    allocator_.Free(duplicates);
  }

  void MatchAndLock(uint32_t root, const std::vector<int32_t>& tokens) {
    std::vector<PageId> pages;
    const NodeId node = cache_.MatchPrefix(roots_[root], tokens, &pages);
    ASSERT_EQ(pages, Expect(root, tokens));
    Touch(root, Prefix(tokens, pages.size()), 0);
    VisitPath(root, Prefix(tokens, pages.size()), [](Page* page) { ++page->locks; });
    cache_.Lock(node);
    held_.push_back({node, root, Prefix(tokens, pages.size())});
  }

  void Unlock() {
    if (held_.empty()) return;
    const uint32_t i = Below(static_cast<uint32_t>(held_.size()));
    cache_.Unlock(held_[i].node);
    VisitPath(held_[i].root, held_[i].tokens, [&](Page* page) {
      if (--page->locks == 0) page->stamp = ++clock_;
    });
    held_.erase(held_.begin() + i);
  }

  void Extend(const std::vector<int32_t>& tokens) {
    const auto count = static_cast<uint32_t>(tokens.size() / page_size_);
    std::vector<PageId> pages;
    if (held_.empty() || count == 0 || !allocator_.Alloc(count, &pages)) return;
    Held& held = held_[Below(static_cast<uint32_t>(held_.size()))];
    std::vector<int32_t> all = held.tokens;
    all.insert(all.end(), tokens.begin(), tokens.begin() + count * page_size_);
    const size_t before = held.tokens.size() / page_size_;
    const bool taken = map_.contains({held.root, Prefix(all, before + 1)});
    const NodeId node = cache_.ExtendLocked(held.node, Prefix(tokens, count), pages);
    ASSERT_EQ(node == kNoNode, taken);
    if (taken) {
      allocator_.Free(pages);
      return;
    }
    for (uint32_t i = 0; i < count; ++i) {
      map_[{held.root, Prefix(all, before + i + 1)}] = {.page = pages[i], .locks = 1};
    }
    held.node = node;
    held.tokens = all;
  }

  void Evict() {
    const uint32_t count = Below(10), evictable = cache_.evictable_pages();
    std::vector<PageId> pages;
    cache_.Evict(count, &pages);
    ASSERT_EQ(pages.size(), std::min(count, evictable));
    ASSERT_THAT(pages, ::testing::UnorderedElementsAreArray(TakeFirst(pages.size())));
    for (const auto& [key, page] : map_) {  // what stays is whole from its root
      ASSERT_EQ(Expect(key.first, key.second).size(), key.second.size() / page_size_);
    }
    for (const Held& held : held_) {
      ASSERT_EQ(Expect(held.root, held.tokens).size(), held.tokens.size() / page_size_);
    }
    allocator_.Free(pages);
  }

  // Takes those out that are to be evicted next.
  std::vector<PageId> TakeFirst(size_t count) {
    std::vector<PageId> pages;
    while (pages.size() < count) {
      auto first = map_.end();
      for (auto it = map_.begin(); it != map_.end(); ++it) {
        const Page& page = it->second;
        if (page.locks > 0) continue;
        const auto rank = [this](const Page& p) { return std::pair(lfu_ ? p.hits : 0, p.stamp); };
        if (first == map_.end() || rank(page) < rank(first->second)) first = it;
      }
      if (first == map_.end()) break;
      pages.push_back(first->second.page);
      map_.erase(first);
    }
    return pages;
  }

  std::mt19937_64 random_;
  const uint32_t page_size_;
  const bool lfu_;
  uint64_t clock_ = 0;
  RadixCache cache_;
  PageAllocator allocator_;
  std::vector<NodeId> roots_;
  std::map<Key, Page> map_;
  std::vector<Held> held_;
};

TEST(RadixCacheModelTest, AgreesWithANaiveMap) {
  const char* text = std::getenv("FLOTILLA_TEST_SEED");
  const uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{std::random_device{}()};
  std::cout << "FLOTILLA_TEST_SEED=" << seed << std::endl;
  for (uint64_t run = 0; run < 56; ++run) {
    SCOPED_TRACE(run);
    const auto policy = run % 2 == 0 ? EvictionPolicy::kLru : EvictionPolicy::kLfu;
    RadixCacheModel model(seed + run, 1u << run / 2 % 7, policy);  // pages of 1 to 64 tokens
    for (int step = 0; step < 1000 && !HasFatalFailure(); ++step) model.Step();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace flotilla
