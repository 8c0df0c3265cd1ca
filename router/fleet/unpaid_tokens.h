// What aborted requests still owe: their replica says with its last word on each what it had
// computed by then, a long prompt's first chunks, or tokens that were on their way. Whoever leaves
// early pays for that too.
//
// Units: tokens. Threads: one at a time. Ownership: keeps no caller's place. Errors: none; what a
// replica does not live to say is not charged.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "router/fleet/request_stream.h"

namespace flotilla {

class UnpaidTokens {
 public:
  void Add(const RequestStream& stream) {
    unpaid_.insert_or_assign(stream.id, Debt{stream.bill, stream.sink->caller().Debtor()});
  }
  // Of a stream that nobody waits for.
  void OnDelta(const v1::Delta& delta) {
    const auto found = unpaid_.find(delta.stream_id());
    if (found == unpaid_.end() || (!delta.last() && !delta.has_error())) return;
    if (!delta.repeats()) found->second.bill.ChargeUpTo(Computed(delta), found->second.caller);
    unpaid_.erase(found);
  }
  bool empty() const { return unpaid_.empty(); }
  // The replica has forgotten them.
  void Clear() { unpaid_.clear(); }

 private:
  struct Debt {
    TokenBill bill;
    Caller caller;
  };
  // It may have ended by itself before the abort was there.
  static uint64_t Computed(const v1::Delta& last) {
    if (last.has_computed_tokens()) return last.computed_tokens();
    return static_cast<uint64_t>(last.usage().prompt_tokens()) +
           static_cast<uint64_t>(last.usage().completion_tokens());
  }

  std::unordered_map<uint64_t, Debt> unpaid_;  // by stream
};

}  // namespace flotilla
