// What tenants may ask for: requests and tokens a minute, requests at once (api_keys.h). Requests
// about texts, which take no replica's time, count for the first alone.
//
// Each limit a minute is a bucket that holds a minute's worth and fills evenly. A request takes one
// from the first; its tokens are taken as they are computed, so the second may fall below
// nothing, and then no request begins until it is above again.
// Metrics: who asked for how much, and was refused how often. A tenant is a word of the operator's,
// so it may be a label.
// Threads: any. Ownership: the registry outlives all; a Caller keeps the limits it came from alive;
// a request's last Caller frees its place. Errors: RESOURCE_EXHAUSTED with the time after which it
// may be tried again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "router/admission/api_keys.h"

namespace flotilla {

class TenantLimits;

// Who a request is from. Copies are the same request's.
class Caller {
 public:
  Caller() = default;  // anybody, without limits
  // Empty: anybody.
  const std::string& tenant() const;
  void Charge(uint64_t tokens) const;
  // For what is still to be charged when the request is over: the same tenant's, in no place of its
  // requests at once.
  Caller Debtor() const;

 private:
  friend class TenantLimits;
  friend struct Access;
  struct Place;
  explicit Caller(std::shared_ptr<Place> place) : place_(std::move(place)) {}

  std::shared_ptr<Place> place_;
};

// What was charged of a request's tokens, so that each is charged once.
class TokenBill {
 public:
  TokenBill() = default;
  // `paid`: tokens that are charged elsewhere.
  explicit TokenBill(uint64_t paid) : charged_(paid) {}

  // So many have been computed by now; fewer than before is fine.
  void ChargeUpTo(uint64_t computed, const Caller& caller) {
    if (computed <= charged_) return;
    caller.Charge(computed - charged_);
    charged_ = computed;
  }
  // So many have been, for somebody who pays for them.
  void PaidUpTo(uint64_t computed) { charged_ = std::max(charged_, computed); }

 private:
  uint64_t charged_ = 0;
};

// Of a router that asks for keys.
struct Access {
  ApiKeys keys;
  std::shared_ptr<TenantLimits> limits;

  // A request that brings these headers begins.
  std::variant<Caller, ApiError> Admit(std::string_view authorization, std::string_view x_api_key);
  // The same of one that generates nothing.
  std::variant<Caller, ApiError> AdmitText(std::string_view authorization,
                                           std::string_view x_api_key);
  // Who it is from; no request begins, and nothing is counted.
  std::variant<Caller, ApiError> Identify(std::string_view authorization,
                                          std::string_view x_api_key) const;
};

class TenantLimits : public std::enable_shared_from_this<TenantLimits> {
 public:
  TenantLimits(const Clock* clock, prometheus::Registry* registry);

  // A request begins.
  std::variant<Caller, ApiError> Enter(std::shared_ptr<const Tenant> tenant);
  // One begins that computes no token and takes no place.
  std::optional<ApiError> EnterText(const Tenant& tenant);

 private:
  friend class Caller;
  struct Bucket {
    double level = 0;
    int64_t filled_ns = 0;

    void Fill(uint32_t per_minute, int64_t now_ns);
  };
  struct State {
    Bucket requests, tokens;
    uint32_t running = 0;
    prometheus::Counter* begun = nullptr;
    prometheus::Counter* refused = nullptr;
    prometheus::Counter* computed = nullptr;  // tokens
    prometheus::Gauge* in_flight = nullptr;
  };
  State& Find(const Tenant& tenant);
  State NewState(const Tenant& tenant, int64_t now_ns) const;
  static std::optional<ApiError> Check(const State& state, const Tenant& tenant);
  static std::optional<ApiError> CheckRequests(const State& state, const Tenant& tenant);
  void Leave(const Tenant& tenant);
  void Charge(const Tenant& tenant, uint64_t tokens);

  const Clock& clock_;
  prometheus::Family<prometheus::Counter>& begun_;
  prometheus::Family<prometheus::Counter>& refused_;
  prometheus::Family<prometheus::Counter>& computed_;
  prometheus::Family<prometheus::Gauge>& in_flight_;
  std::mutex mutex_;
  std::map<std::string, State> states_;  // by tenant: as many as the file of keys has
};

}  // namespace flotilla
