#include "scheduler_proc/core/tenant_order.h"

#include <algorithm>

namespace flotilla {

TenantOrder::Tenant* TenantOrder::Acquire(Req* req) {
  if (req->tenant != kNoTenant) return tenants_[req->tenant].get();
  const auto it = by_name_.find(req->spec.cache_salt);
  Tenant* tenant = nullptr;
  if (it != by_name_.end()) {
    tenant = tenants_[it->second].get();
    num_idle_ -= tenant->num_reqs == 0;
  } else {
    if (free_ids_.empty()) {
      free_ids_.push_back(static_cast<uint32_t>(tenants_.size()));
      tenants_.emplace_back();
    }
    const uint32_t id = free_ids_.back();
    free_ids_.pop_back();
    tenants_[id] = std::make_unique<Tenant>();
    tenant = tenants_[id].get();
    tenant->id = id;
    tenant->name = req->spec.cache_salt;
    by_name_.emplace(tenant->name, id);
  }
  ++tenant->num_reqs;
  req->tenant = tenant->id;
  return tenant;
}

TenantOrder::Tenant& TenantOrder::LeastServed() {
  while (true) {
    Tenant& first = *waiting_.begin();
    if (first.key == first.counter) return first;
    waiting_.erase(waiting_.begin());
    first.key = first.counter;
    waiting_.insert(first);
  }
}

void TenantOrder::Add(Req* req) {
  Tenant* tenant = Acquire(req);
  if (tenant->reqs.empty()) {
    if (waiting_.empty() && last_ != UINT32_MAX) last_counter_ = tenants_[last_]->counter;
    const double floor = waiting_.empty() ? last_counter_ : LeastServed().counter;
    tenant->counter = tenant->key = std::max(tenant->counter, floor);
    waiting_.insert(*tenant);
  }
  tenant->reqs.insert(*req);
  ++size_;
}

void TenantOrder::Remove(Req* req) {
  Tenant& tenant = *tenants_[req->tenant];
  tenant.reqs.erase(tenant.reqs.iterator_to(*req));
  --size_;
  if (!tenant.reqs.empty()) return;
  waiting_.erase(waiting_.iterator_to(tenant));
  if (waiting_.empty()) last_ = tenant.id;
}

Req* TenantOrder::Next() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Tenant& tenant = *it;
    if (tenant.key != tenant.counter) {
      it = waiting_.erase(it);
      tenant.key = tenant.counter;
      waiting_.insert(tenant);
      if (it == waiting_.end() || ByKey()(tenant, *it)) it = waiting_.iterator_to(tenant);
      continue;
    }
    if (tenant.round != round_) {
      tenant.round = round_;
      tenant.next = tenant.reqs.begin();
    }
    if (tenant.next != tenant.reqs.end()) return &*tenant.next++;
    ++it;
  }
  return nullptr;
}

void TenantOrder::OnAdmitted(const Req& req) {
  if (!req.was_scheduled) tenants_[req.tenant]->counter += input_weight_ * req.num_pending();
}

void TenantOrder::OnForgotten(const Req& req) {
  if (--tenants_[req.tenant]->num_reqs > 0) return;
  if (++num_idle_ >= 2 * kMaxIdleTenants) ForgetIdleTenants();
}

void TenantOrder::ForgetIdleTenants() {
  std::vector<Tenant*> idle;
  for (const auto& tenant : tenants_) {
    if (tenant != nullptr && tenant->num_reqs == 0) idle.push_back(tenant.get());
  }
  const auto least = idle.begin() + static_cast<ptrdiff_t>(idle.size() - kMaxIdleTenants);
  std::nth_element(idle.begin(), least, idle.end(), [](const Tenant* a, const Tenant* b) {
    return a->counter != b->counter ? a->counter < b->counter : a->id < b->id;
  });
  for (auto it = idle.begin(); it != least; ++it) {
    const uint32_t id = (*it)->id;
    if (id == last_) {
      last_counter_ = (*it)->counter;
      last_ = UINT32_MAX;
    }
    by_name_.erase((*it)->name);
    tenants_[id].reset();
    free_ids_.push_back(id);
  }
  num_idle_ = kMaxIdleTenants;
}

double TenantOrder::counter(const std::string& tenant) const {
  const auto it = by_name_.find(tenant);
  return it == by_name_.end() ? 0 : tenants_[it->second]->counter;
}

}  // namespace flotilla
