#include "router/admission/tenant_limits.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace flotilla {
namespace {

constexpr double kMinuteNs = 60.0 * kNsPerSecond;

ApiError TooMany(const std::string& what, double wait_ns) {
  ApiError error;
  error.code = absl::StatusCode::kResourceExhausted;
  error.message = StrCat("Your limit of ", what, " is reached; try again later.");
  error.type_code = "rate_limit_exceeded";
  error.retry_after_ms = std::max<int64_t>(1, std::llround(std::ceil(wait_ns / kNsPerMs)));
  return error;
}

// Until a bucket has risen by so much.
double WaitNs(double missing, uint32_t per_minute) { return missing * kMinuteNs / per_minute; }

std::string_view KeyOf(std::string_view authorization, std::string_view x_api_key) {
  const std::string_view bearer = BearerKey(authorization);
  return bearer.empty() ? x_api_key : bearer;
}

}  // namespace

// `limits` null: nothing is charged.
struct Caller::Place {
  std::shared_ptr<TenantLimits> limits;
  std::shared_ptr<const Tenant> tenant;
  bool running = false;  // one of the tenant's requests at once

  Place(std::shared_ptr<TenantLimits> l, std::shared_ptr<const Tenant> t, bool r)
      : limits(std::move(l)), tenant(std::move(t)), running(r) {}
  ~Place() {
    if (running) limits->Leave(*tenant);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
};

std::variant<Caller, ApiError> Access::Admit(std::string_view authorization,
                                             std::string_view x_api_key) {
  auto found = keys.Find(KeyOf(authorization, x_api_key));
  if (auto* error = std::get_if<ApiError>(&found)) return *error;
  return limits->Enter(std::move(std::get<std::shared_ptr<const Tenant>>(found)));
}

std::variant<Caller, ApiError> Access::AdmitText(std::string_view authorization,
                                                 std::string_view x_api_key) {
  auto found = keys.Find(KeyOf(authorization, x_api_key));
  if (auto* error = std::get_if<ApiError>(&found)) return *error;
  auto& tenant = std::get<std::shared_ptr<const Tenant>>(found);
  if (auto error = limits->EnterText(*tenant)) return *error;
  return Caller(std::make_shared<Caller::Place>(nullptr, std::move(tenant), false));
}

std::variant<Caller, ApiError> Access::Identify(std::string_view authorization,
                                                std::string_view x_api_key) const {
  auto found = keys.Find(KeyOf(authorization, x_api_key));
  if (auto* error = std::get_if<ApiError>(&found)) return *error;
  return Caller(std::make_shared<Caller::Place>(
      nullptr, std::move(std::get<std::shared_ptr<const Tenant>>(found)), false));
}

const std::string& Caller::tenant() const {
  static const std::string nobody;
  return place_ == nullptr ? nobody : place_->tenant->name;
}

void Caller::Charge(uint64_t tokens) const {
  if (place_ != nullptr && place_->limits != nullptr)
    place_->limits->Charge(*place_->tenant, tokens);
}

Caller Caller::Debtor() const {
  if (place_ == nullptr) return {};
  return Caller(std::make_shared<Place>(place_->limits, place_->tenant, false));
}

void TenantLimits::Bucket::Fill(uint32_t per_minute, int64_t now_ns) {
  const double risen = static_cast<double>(now_ns - filled_ns) * per_minute / kMinuteNs;
  level = std::min<double>(per_minute, level + risen);
  filled_ns = now_ns;
}

TenantLimits::TenantLimits(const Clock* clock, prometheus::Registry* registry)
    : clock_(*clock),
      begun_(AddCounters(registry, "flotilla_router_tenant_requests_total",
                         "Requests that began, by the tenant of their key (--api-keys-file); also "
                         "those about texts alone.")),
      refused_(AddCounters(registry, "flotilla_router_tenant_requests_refused_total",
                           "Requests that one of the tenant's limits refused.")),
      computed_(AddCounters(registry, "flotilla_router_tenant_tokens_total",
                            "Tokens of prompts and output, as tokens-per-minute counts them.")),
      in_flight_(AddGauges(registry, "flotilla_router_tenant_requests_in_flight",
                           "Requests of the tenant at once.")) {}

// Full buckets.
TenantLimits::State TenantLimits::NewState(const Tenant& tenant, int64_t now_ns) const {
  const prometheus::Labels labels = {{"tenant", tenant.name}};
  State state;
  state.requests = {static_cast<double>(tenant.requests_per_minute), now_ns};
  state.tokens = {static_cast<double>(tenant.tokens_per_minute), now_ns};
  state.begun = &begun_.Add(labels);
  state.refused = &refused_.Add(labels);
  state.computed = &computed_.Add(labels);
  state.in_flight = &in_flight_.Add(labels);
  return state;
}

TenantLimits::State& TenantLimits::Find(const Tenant& tenant) {
  const int64_t now_ns = clock_.NowNs();
  auto at = states_.find(tenant.name);
  if (at == states_.end()) at = states_.emplace(tenant.name, NewState(tenant, now_ns)).first;
  State& state = at->second;
  state.requests.Fill(tenant.requests_per_minute, now_ns);
  state.tokens.Fill(tenant.tokens_per_minute, now_ns);
  return state;
}

std::optional<ApiError> TenantLimits::CheckRequests(const State& state, const Tenant& tenant) {
  const uint32_t requests = tenant.requests_per_minute;
  if (requests == 0 || state.requests.level >= 1) return std::nullopt;
  return TooMany(StrCat(requests, " requests a minute"),
                 WaitNs(1 - state.requests.level, requests));
}

std::optional<ApiError> TenantLimits::EnterText(const Tenant& tenant) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& state = Find(tenant);
  if (auto error = CheckRequests(state, tenant)) {
    state.refused->Increment();
    return error;
  }
  if (tenant.requests_per_minute > 0) --state.requests.level;
  state.begun->Increment();
  return std::nullopt;
}

std::optional<ApiError> TenantLimits::Check(const State& state, const Tenant& tenant) {
  const uint32_t tokens = tenant.tokens_per_minute;
  if (tenant.concurrency > 0 && state.running >= tenant.concurrency)
    return TooMany(StrCat(tenant.concurrency, " requests at once"), kNsPerSecond);
  if (auto error = CheckRequests(state, tenant)) return error;
  if (tokens > 0 && state.tokens.level <= 0)
    return TooMany(StrCat(tokens, " tokens a minute"), WaitNs(1 - state.tokens.level, tokens));
  return std::nullopt;
}

std::variant<Caller, ApiError> TenantLimits::Enter(std::shared_ptr<const Tenant> tenant) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& state = Find(*tenant);
  if (auto error = Check(state, *tenant)) {
    state.refused->Increment();
    return *error;
  }
  if (tenant->requests_per_minute > 0) --state.requests.level;
  state.begun->Increment();
  state.in_flight->Set(++state.running);
  return Caller(std::make_shared<Caller::Place>(shared_from_this(), std::move(tenant), true));
}

void TenantLimits::Leave(const Tenant& tenant) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& state = Find(tenant);
  state.in_flight->Set(--state.running);
}

void TenantLimits::Charge(const Tenant& tenant, uint64_t tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& state = Find(tenant);
  state.computed->Increment(static_cast<double>(tokens));
  if (tenant.tokens_per_minute > 0) state.tokens.level -= static_cast<double>(tokens);
}

}  // namespace flotilla
