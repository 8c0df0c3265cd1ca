#include "scheduler_proc/core/tenant_order.h"

#include <algorithm>
#include <cmath>

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

void TenantOrder::Save(std::string* out) const {
  static_assert(sizeof(Tenant) == 144 && sizeof(TenantOrder) == 192);
  WireWriter writer(out);
  writer.Put(static_cast<uint32_t>(tenants_.size()));
  for (const auto& tenant : tenants_) {
    writer.Put(static_cast<uint8_t>(tenant != nullptr));
    if (tenant == nullptr) continue;
    writer.PutBytes(tenant->name);
    writer.Put(tenant->counter);
  }
  writer.PutSpan(std::span(free_ids_));
  writer.Put(last_counter_);
  writer.Put(last_);
}

Status TenantOrder::RestoreTenants(WireReader* in) {
  const auto is_counter = [](double value) { return value >= 0 && std::isfinite(value); };
  const auto broken = [] { return absl::DataLossError("tenants"); };
  const auto count = in->Get<uint32_t>();
  if (count > in->remaining()) return broken();
  tenants_.resize(count);
  for (uint32_t id = 0; id < count; ++id) {
    const auto present = in->Get<uint8_t>();
    if (present > 1) return broken();
    if (present == 0) continue;
    tenants_[id] = std::make_unique<Tenant>();
    Tenant& tenant = *tenants_[id];
    tenant.id = id;
    tenant.name = in->GetBytes();
    tenant.counter = tenant.key = in->Get<double>();
    if (!is_counter(tenant.counter) || !by_name_.emplace(tenant.name, id).second) return broken();
  }
  in->GetSpanInto(count, &free_ids_);
  std::vector<uint8_t> is_free(count);
  for (const uint32_t id : free_ids_) {
    if (id >= count || tenants_[id] != nullptr || is_free[id]++) return broken();
  }
  last_counter_ = in->Get<double>();
  last_ = in->Get<uint32_t>();
  const bool last_exists = last_ < count && tenants_[last_] != nullptr;
  num_idle_ = by_name_.size();
  if (!in->ok() || free_ids_.size() + by_name_.size() != count || !is_counter(last_counter_) ||
      (last_ != UINT32_MAX && !last_exists)) {
    return broken();
  }
  return OkStatus();
}

// Whose counters are what they were: none is lifted, as for one that comes.
Status TenantOrder::Restore(WireReader* in, std::span<Req* const> waiting,
                            std::span<Req* const> elsewhere) {
  RETURN_IF_ERROR(RestoreTenants(in));
  for (const std::span<Req* const> reqs : {waiting, elsewhere}) {
    for (Req* req : reqs) {
      if (!by_name_.contains(req->spec.cache_salt)) return absl::DataLossError("tenants");
      Acquire(req);
    }
  }
  for (Req* req : waiting) {
    Tenant& tenant = *tenants_[req->tenant];
    if (tenant.reqs.empty()) waiting_.insert(tenant);
    tenant.reqs.insert(*req);
  }
  size_ = waiting.size();
  if (num_idle_ >= 2 * kMaxIdleTenants) return absl::DataLossError("tenants");
  return OkStatus();
}

double TenantOrder::counter(const std::string& tenant) const {
  const auto it = by_name_.find(tenant);
  return it == by_name_.end() ? 0 : tenants_[it->second]->counter;
}

}  // namespace flotilla
