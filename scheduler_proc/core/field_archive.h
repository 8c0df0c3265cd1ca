// Bytes from fields and back: one list of fields serves both directions, so that neither can forget
// one. FieldSaver appends, FieldLoader reads what it wrote; a list is a template over both:
//
//   template <typename Archive, typename Self>
//   static void Fields(Archive& field, Self& self) { field(self.a_), field(self.b_); }
//
// Fields are numbers, enums, bools, strings, and vectors or arrays of what has no padding.
// Threads: one. Errors: WireReader's, and good() for a bool that is neither 0 nor 1. Ranges are the
// caller's to check, of enums too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/wire.h"
#include "scheduler_proc/core/scheduler.h"

namespace flotilla {

class FieldSaver {
 public:
  explicit FieldSaver(std::string* out) : out_(out) {}
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      out_.PutBytes(value);
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      out_.Put(value);
    } else {
      out_.PutSpan(std::span(value.data(), value.size()));
    }
  }

 private:
  WireWriter out_;
};

class FieldLoader {
 public:
  explicit FieldLoader(WireReader* in) : in_(*in) {}
  bool good() const { return good_ && in_.ok(); }
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value.assign(in_.GetBytes());
    } else if constexpr (std::is_same_v<T, bool>) {
      const auto byte = in_.Get<uint8_t>();
      if (byte > 1) good_ = false;
      value = byte == 1;
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      value = in_.Get<T>();
    } else {
      in_.GetSpanInto(UINT32_MAX, &value);
    }
  }

 private:
  WireReader& in_;
  bool good_ = true;
};

// Times that are read are clocks of a machine that runs: their sums and differences must not
// overflow.
inline constexpr int64_t kMaxTimeNs = int64_t{1} << 61;
inline bool IsTime(int64_t ns) { return ns > -kMaxTimeNs && ns < kMaxTimeNs; }

// A field that is added must be added here: then these sizes change.
static_assert(sizeof(SchedulerConfig) == 232 && sizeof(ReqSpec) == 240);

template <typename Archive, typename Config>
void ConfigFields(Archive& field, Config& c) {
  field(c.num_pages), field(c.page_size), field(c.max_running_requests);
  field(c.max_queued_requests), field(c.chunked_prefill_size), field(c.max_prefill_tokens);
  field(c.context_length), field(c.vocab_size), field(c.enable_mixed_chunk);
  field(c.max_plans_in_flight), field(c.speculative_num_draft_tokens), field(c.max_step_ns);
  field(c.enable_prefix_cache);
  field(c.eviction_policy), field(c.schedule_policy), field(c.schedule_max_overtakes);
  field(c.schedule_random_seed), field(c.vtc_input_weight), field(c.vtc_output_weight);
  field(c.priority_scheduling_preemption_threshold), field(c.init_new_token_ratio);
  field(c.min_new_token_ratio_factor), field(c.new_token_ratio_decay_steps);
  field(c.schedule_conservativeness), field(c.clip_max_new_tokens), field(c.eos_ids);
}

// Without the tokens, which the core keeps elsewhere, and the grammar, which can't be saved.
template <typename Archive, typename Spec>
void SpecFields(Archive& field, Spec& s) {
  field(s.id), field(s.sampling), field(s.logit_bias), field(s.max_new_tokens), field(s.pooling);
  field(s.min_new_tokens), field(s.ignore_eos), field(s.stop_token_ids), field(s.cache_salt);
  field(s.priority), field(s.arrival_ns), field(s.deadline_ns);
}

}  // namespace flotilla
