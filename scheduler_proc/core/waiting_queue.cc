#include "scheduler_proc/core/waiting_queue.h"

namespace flotilla {

WaitingQueue::WaitingQueue(const SchedulerConfig& config, KvPool* kv)
    : policy_(*FindSchedulePolicy(config.schedule_policy)),
      max_overtakes_(policy_.ages ? config.schedule_max_overtakes : 0),
      order_(policy_.make(config, kv)) {
  given_.reserve(config.max_queued_requests + 2 * size_t{config.max_running_requests});
}

void WaitingQueue::Add(Req* req) {
  num_tokens_ += req->len();
  req->waits_first = req->retracted && !policy_.preempts;
  if (req->waits_first) {
    if (!req->was_scheduled) order_->AddBefore(req);
    retracted_.insert(*req);
    return;
  }
  req->num_admitted_before = num_admitted_;
  waiting_.insert(waiting_.end(), *req);  // a hint
  order_->Add(req);
}

void WaitingQueue::Remove(Req* req) {
  num_tokens_ -= req->len();
  if (req->waits_first) {
    retracted_.erase(retracted_.iterator_to(*req));
    return;
  }
  waiting_.erase(waiting_.iterator_to(*req));
  order_->Remove(req);
}

void WaitingQueue::BeginRound() {
  ++round_;
  given_.clear();
  next_retracted_ = retracted_.begin();
  next_aged_ = waiting_.begin();
  order_->BeginRound();
}

Req* WaitingQueue::Next() {
  // Those that became old enough in this round may have been given before.
  while (next_aged_ != waiting_.end() && next_aged_->round == round_) ++next_aged_;
  Req* req = nullptr;
  if (next_retracted_ != retracted_.end()) {
    req = &*next_retracted_++;
  } else if (next_aged_ != waiting_.end() && IsAged(*next_aged_)) {
    req = &*next_aged_++;
  } else {
    do {
      req = order_->Next();
    } while (req != nullptr && req->round == round_);
  }
  if (req == nullptr) return nullptr;
  req->round = round_;
  given_.push_back(req);
  return req;
}

void WaitingQueue::EndRound() {
  for (Req* req : given_) {
    if (req->state != ReqState::kWaiting) Remove(req);
  }
  given_.clear();
}

void WaitingQueue::OnAdmitted(const Req& req) {
  num_admitted_ += !req.retracted;
  order_->OnAdmitted(req);
}

void WaitingQueue::Save(std::string* out) const {
  static_assert(sizeof(WaitingQueue) == 168);
  WireWriter(out).Put(num_admitted_);
  order_->Save(out);
}

Status WaitingQueue::Restore(WireReader* in, std::span<Req* const> reqs,
                             std::span<Req* const> holders) {
  num_admitted_ = in->Get<uint64_t>();
  std::vector<Req*> ordered, elsewhere(holders.begin(), holders.end());
  const Req* before = nullptr;
  for (Req* req : reqs) {
    req->waits_first = req->retracted && !policy_.preempts;
    // Those that wait first come first, and each kind by arrival.
    if (before != nullptr &&
        (before->waits_first == req->waits_first ? before->seq >= req->seq : req->waits_first)) {
      return absl::DataLossError("arrivals");
    }
    before = req;
    num_tokens_ += req->len();
    (req->waits_first ? retracted_ : waiting_).insert(*req);
    (req->waits_first ? elsewhere : ordered).push_back(req);
  }
  return order_->Restore(in, ordered, elsewhere);
}

std::vector<Req*> WaitingQueue::Order() {
  BeginRound();
  while (Next() != nullptr) {
  }
  return std::move(given_);
}

}  // namespace flotilla
