// A waiting queue beside a small cache, for tests of orders.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "scheduler_proc/core/waiting_queue.h"

namespace flotilla::testing {

class QueueFixture : public ::testing::Test {
 protected:
  QueueFixture() {
    kv_.Reset(64);
    config_.page_size = 1;
  }
  ~QueueFixture() override { queue_.reset(); }  // before the requests it holds

  void UsePolicy(const std::string& name) {
    config_.schedule_policy = name;
    queue_ = std::make_unique<WaitingQueue>(config_, &kv_);
  }
  WaitingQueue& queue() { return *queue_; }

  Req* MakeReq(std::vector<int32_t> tokens, bool retracted = false, const std::string& salt = "") {
    Req& req = reqs_.emplace_back();
    req.seq = reqs_.size();
    req.SetTokens(std::move(tokens));
    req.prompt_len = req.len();
    req.retracted = req.was_scheduled = retracted;
    req.spec.cache_salt = salt;
    kv_.Attach(&req);
    return &req;
  }
  void Cache(std::vector<int32_t> tokens) {
    Req* req = MakeReq(std::move(tokens));
    kv_.TakePrefix(req);
    ASSERT_TRUE(kv_.Grow(req, req->len()));
    req->num_computed = req->num_scheduled = req->len();
    kv_.Release(req, req->len());
  }
  // A request of the tenant that waits.
  Req* AddOf(const std::string& tenant, uint32_t tokens = 1) {
    Req* req = MakeReq(std::vector<int32_t>(tokens, 1), /*retracted=*/false, tenant);
    queue_->Add(req);
    return req;
  }
  // What the scheduler does with a request that gets a slot.
  void Admit(Req* req) {
    queue_->OnAdmitted(*req);
    req->was_scheduled = true;
    req->retracted = false;
    req->state = ReqState::kRunning;
  }
  // A round in which the best is admitted.
  Req* AdmitBest() {
    queue_->BeginRound();
    Req* req = queue_->Next();
    if (req != nullptr) Admit(req);
    queue_->EndRound();
    return req;
  }

  SchedulerConfig config_;
  KvPool kv_{/*page_size=*/1, /*enable_prefix_cache=*/true};
  std::deque<Req> reqs_;

 private:
  std::unique_ptr<WaitingQueue> queue_;
};

}  // namespace flotilla::testing
