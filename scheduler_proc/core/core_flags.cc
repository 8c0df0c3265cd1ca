#include "scheduler_proc/core/core_flags.h"

#include "common/base/clock.h"

namespace flotilla {

SchedulerConfig CoreFlags::Config() const {
  SchedulerConfig result = config;
  result.enable_prefix_cache = !disable_radix_cache;
  result.enable_mixed_chunk = !disable_mixed_chunk;
  if (disable_overlap) result.max_plans_in_flight = 1;
  result.max_step_ns = int64_t{max_step_ms} * kNsPerMs;
  return result;
}

void AddCoreFlags(CLI::App* app, CoreFlags* flags) {
  SchedulerConfig& config = flags->config;
  AddFlag(app, kMaxRunningRequestsFlag, &config.max_running_requests);
  AddFlag(app, kMaxQueuedRequestsFlag, &config.max_queued_requests);
  AddFlag(app, kChunkedPrefillSizeFlag, &config.chunked_prefill_size);
  AddFlag(app, kMaxPrefillTokensFlag, &config.max_prefill_tokens);
  AddFlag(app, kPageSizeFlag, &config.page_size);
  app->add_option("--context-length", config.context_length, "Tokens of a request; 0: the model's");
  AddFlag(app, kSchedulePolicyFlag, &config.schedule_policy);
  AddFlag(app, kScheduleMaxOvertakesFlag, &config.schedule_max_overtakes);
  AddFlag(app, kPriorityPreemptionFlag, &config.priority_scheduling_preemption_threshold);
  app->add_option("--vtc-input-weight", config.vtc_input_weight,
                  "Service that a prompt token counts as, under --schedule-policy vtc")
      ->check(CLI::Range(0.0, 1e6));
  app->add_option("--vtc-output-weight", config.vtc_output_weight,
                  "Service that an output token counts as")
      ->check(CLI::Range(0.0, 1e6));
  app->add_option("--schedule-random-seed", config.schedule_random_seed,
                  "Seed of the random policy");
  AddFlag(app, kEvictionPolicyFlag, &config.eviction_policy);
  app->add_flag("--disable-radix-cache", flags->disable_radix_cache, "No prefix cache");
  app->add_option("--schedule-conservativeness", config.schedule_conservativeness,
                  "Above 1: fewer requests run at once, and fewer are retracted; below 1: more")
      ->check(CLI::Range(0.0, 1e3));
  app->add_option(
         "--init-new-token-ratio", config.init_new_token_ratio,
         "Share of the tokens a request may still produce for which pages are kept, at first")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--min-new-token-ratio-factor", config.min_new_token_ratio_factor,
                  "That share falls to so much of itself while nobody is retracted")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--new-token-ratio-decay-steps", config.new_token_ratio_decay_steps,
                  "Steps until then")
      ->check(CLI::Range(1u, 1u << 20));
  app->add_flag("--disable-mixed-chunk", flags->disable_mixed_chunk,
                "Prefill chunks and decodes in separate steps, prefill first");
  AddFlag(app, kMaxStepMsFlag, &flags->max_step_ms);
  app->add_flag("--disable-overlap", flags->disable_overlap,
                "Plan a step only when the one before is done");
}

}  // namespace flotilla
