// The orders that follow the cache, against matching all requests again after each change.
// FLOTILLA_TEST_SEED repeats a run.
#include "scheduler_proc/core/matched_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "tests/scheduler_proc/core/queue_fixture.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;

class DfsOrderTest : public testing::QueueFixture {};

TEST_F(DfsOrderTest, GoesDownTheHeaviestChild) {
  UsePolicy("dfs-weight");
  Cache({1, 2, 3});
  Cache({1, 2, 4});
  Cache({5, 6});
  Req* nowhere = MakeReq({9, 9});
  Req* light = MakeReq({5, 6, 0});
  Req* half = MakeReq({1, 0, 0});
  Req* three = MakeReq({1, 2, 3, 0});
  Req* four_a = MakeReq({1, 2, 4, 0});
  Req* four_b = MakeReq({1, 2, 4, 7});
  Req* retracted = MakeReq({8, 8}, /*retracted=*/true);
  for (Req* req : {nowhere, light, half, three, four_b, four_a, retracted}) queue().Add(req);
  EXPECT_THAT(queue().Order(), ElementsAre(retracted, four_a, four_b, three, half, light, nowhere));
  queue().Remove(four_a);
  queue().Remove(four_b);
  EXPECT_THAT(queue().Order(), ElementsAre(retracted, three, half, light, nowhere));
  queue().Remove(three);
  EXPECT_THAT(queue().Order(),
              ElementsAre(retracted, half, light, nowhere));  // as heavy, but older
  Cache({9, 9});
  EXPECT_THAT(queue().Order(), ElementsAre(retracted, half, light, nowhere));
  Req* longer = MakeReq({9, 9, 9});
  queue().Add(longer);
  EXPECT_THAT(queue().Order(), ElementsAre(retracted, longer, nowhere, half, light));
}

TEST_F(DfsOrderTest, TenantsAreSubtrees) {
  UsePolicy("dfs-weight");
  Req* one = MakeReq({1, 2}, false, "one");
  Req* two_a = MakeReq({1, 2}, false, "two");
  Req* two_b = MakeReq({1, 2}, false, "two");
  for (Req* req : {one, two_a, two_b}) queue().Add(req);
  EXPECT_THAT(queue().Order(), ElementsAre(two_a, two_b, one));
}

// Requests come, run, end and are aborted beside a cache that is too small for them.
class Model {
 public:
  Model(uint64_t seed, const std::string& policy, uint32_t page_size, EvictionPolicy eviction)
      : random_(seed), policy_(policy), kv_(page_size, true, eviction) {
    config_.schedule_policy = policy;
    config_.schedule_max_overtakes = 0;
    config_.max_queued_requests = 100;
    kv_.Reset(kPages);
    queue_ = std::make_unique<WaitingQueue>(config_, &kv_);
    for (auto& document : documents_) document = RandomTokens(3 * page_size + Below(6 * page_size));
  }

  void Step() {
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        if (waiting_.size() < 60) AddOne();
        break;
      case 3:
        if (!waiting_.empty()) Abort(waiting_[Below(waiting_.size())]);
        break;
      case 4:
        if (Below(200) == 0) Reset();
        break;
      case 5:
        if (!running_.empty()) Finish(Below(running_.size()));
        break;
      default:
        Round();
    }
    const Status status = kv_.cache().CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(Ids(queue_->Order()), Ids(Naive()));
  }
  uint64_t moves() const { return moves_; }

 private:
  static constexpr uint32_t kPages = 60;
  uint32_t Below(size_t bound) { return static_cast<uint32_t>(random_() % bound); }
  // Few different ones, so that all kinds of matches occur.
  std::vector<int32_t> RandomTokens(uint32_t count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(Below(8) == 0);
    return tokens;
  }
  static std::vector<uint64_t> Ids(const std::vector<Req*>& reqs) {
    std::vector<uint64_t> ids;
    for (const Req* req : reqs) ids.push_back(req->seq);
    return ids;
  }

  void AddOne() {
    Req* req = all_.emplace_back(std::make_unique<Req>()).get();
    req->seq = ++next_seq_;
    req->token_ids = documents_[Below(std::size(documents_))];
    req->token_ids.resize(Below(req->token_ids.size()) + 1);
    const std::vector<int32_t> own = RandomTokens(Below(3 * kv_.page_size()));
    req->token_ids.insert(req->token_ids.end(), own.begin(), own.end());
    req->CountTokens();
    req->prompt_len = req->prefill_len = req->len();
    if (Below(5) == 0) req->spec.cache_salt = "tenant";
    if (Below(9) == 0) req->spec.sampling.num_prompt_logprobs = 0;  // reads no cache
    kv_.Attach(req);
    queue_->Add(req);
    waiting_.push_back(req);
  }
  void Abort(Req* req) {
    queue_->Remove(req);
    std::erase(waiting_, req);
    kv_.Detach(req);
  }
  // Admits a few of the best, some are passed over.
  void Round() {
    queue_->BeginRound();
    while (Req* req = queue_->Next()) {
      if (Below(4) == 0) continue;
      kv_.TakePrefix(req);
      if (!kv_.Grow(req, req->len())) {
        kv_.ReturnPrefix(req);
        break;
      }
      req->state = ReqState::kRunning;
      std::erase(waiting_, req);
      running_.push_back(req);
      if (Below(3) == 0) break;
    }
    queue_->EndRound();
  }
  // Its next chunk, or its end.
  void Finish(uint32_t i) {
    Req* req = running_[i];
    const uint64_t before = kv_.cache().total_pages();
    if (req->num_computed < req->len() && Below(2) == 0) {
      req->num_computed += 1 + Below(req->len() - req->num_computed);
      kv_.CacheUnfinished(req);
    } else {
      req->num_computed = req->len();
      kv_.Release(req, req->len());
      kv_.Detach(req);
      running_.erase(running_.begin() + i);
    }
    moves_ += kv_.cache().total_pages() != before;
  }
  void Reset() {
    for (Req* req : running_) {
      KvPool::Forget(req);
      kv_.Detach(req);
    }
    running_.clear();
    kv_.Reset(kPages);
  }

  std::vector<Req*> Naive() {
    std::vector<Req*> reqs = waiting_;
    const auto pages = [&](const Req* req) { return kv_.PeekPrefix(*req); };
    std::sort(reqs.begin(), reqs.end(), [&](const Req* a, const Req* b) {
      return pages(a) != pages(b) ? pages(a) > pages(b) : a->seq < b->seq;
    });
    return policy_ == "lpm" ? reqs : DepthFirst(reqs);
  }
  // `reqs` by length of match, then by arrival.
  std::vector<Req*> DepthFirst(const std::vector<Req*>& reqs) {
    const RadixCache& cache = kv_.cache();
    std::map<NodeId, uint32_t> weights;
    std::map<NodeId, std::vector<Req*>> at;
    std::map<NodeId, std::set<NodeId>> children;
    for (Req* req : reqs) {
      NodeId node = cache.FindPrefix(req->root, kv_.Matchable(*req)).node;
      at[node].push_back(req);
      for (; node != kNoNode; node = cache.parent(node)) {
        ++weights[node];
        children[cache.parent(node)].insert(node);
      }
    }
    std::vector<Req*> order;
    const std::function<void(NodeId)> visit = [&](NodeId node) {
      std::vector<NodeId> below(children[node].begin(), children[node].end());
      std::sort(below.begin(), below.end(), [&](NodeId a, NodeId b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : cache.born(a) < cache.born(b);
      });
      for (const NodeId child : below) visit(child);
      order.insert(order.end(), at[node].begin(), at[node].end());
    };
    visit(kNoNode);
    return order;
  }

  std::mt19937_64 random_;
  const std::string policy_;
  SchedulerConfig config_;
  KvPool kv_;
  std::vector<std::unique_ptr<Req>> all_;
  std::unique_ptr<WaitingQueue> queue_;
  std::vector<int32_t> documents_[3];
  std::vector<Req*> waiting_, running_;
  uint64_t next_seq_ = 0, moves_ = 0;
};

TEST(MatchedOrderModelTest, TheOrderIsThatOfMatchingAllAgain) {
  const char* text = std::getenv("FLOTILLA_TEST_SEED");
  const uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{std::random_device{}()};
  std::cout << "FLOTILLA_TEST_SEED=" << seed << std::endl;
  uint64_t moves = 0;
  for (uint32_t run = 0; run < 28; ++run) {
    SCOPED_TRACE(run);
    const uint32_t page_size = 1u << run / 4;
    Model model(seed + run, run % 2 == 0 ? "lpm" : "dfs-weight", page_size,
                run % 4 < 2 ? EvictionPolicy::kLru : EvictionPolicy::kLfu);
    for (int step = 0; step < 1000 && !::testing::Test::HasFatalFailure(); ++step) model.Step();
    if (HasFatalFailure()) return;
    moves += model.moves();
  }
  EXPECT_GT(moves, 500u);
}

}  // namespace
}  // namespace flotilla
