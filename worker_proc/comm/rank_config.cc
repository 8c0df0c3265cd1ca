#include "worker_proc/comm/rank_config.h"

#include "common/base/flags.h"
#include "shm/step_plan.h"

namespace flotilla {

RankConfig MakeRankConfig(const RankConfigInputs& inputs) {
  const ModelRunnerOptions& runner = *inputs.runner;
  return {
      {"version of plans", StrCat(kStepPlanVersion)},
      {"--tp", StrCat(inputs.tp)},
      {"--model (its digest)", inputs.model_digest},
      {"--device", inputs.device},
      {"--dtype", inputs.dtype},
      {"--kv-cache-dtype", inputs.kv_cache_dtype},
      {"--kv-cache-memory", StrCat(runner.kv_cache_memory)},
      {"--page-size", StrCat(runner.page_size)},
      {"--context-length", StrCat(runner.context_length)},
      {"--max-running-requests", StrCat(runner.max_running_requests)},
      {"--chunked-prefill-size", StrCat(runner.chunked_prefill_size)},
  };
}

void AddDigestFileFlag(CLI::App* app, std::string* path) {
  app->add_option("--digest-file", *path,
                  "File that keeps the model's digest for the next process; none: not kept");
}

void AddRunnerFlags(CLI::App* app, ModelRunnerOptions* runner) {
  app->add_option("--kv-cache-memory", runner->kv_cache_memory,
                  "KV cache of the replica, all ranks together; 0: 512 MiB, or one context if that "
                  "takes more, at most a quarter of the memory")
      ->transform(BytesFlag())
      ->capture_default_str();
  AddFlag(app, kPageSizeFlag, &runner->page_size);
  app->add_option("--context-length", runner->context_length,
                  "Tokens a request may have; 0: the model's")
      ->capture_default_str();
  AddFlag(app, kMaxRunningRequestsFlag, &runner->max_running_requests);
  AddFlag(app, kChunkedPrefillSizeFlag, &runner->chunked_prefill_size);
}

}  // namespace flotilla
