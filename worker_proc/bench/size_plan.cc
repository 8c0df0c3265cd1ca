#include "worker_proc/bench/size_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "common/base/flags.h"
#include "worker_proc/runner/kv_cache.h"

namespace flotilla::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMostKvBytes = uint64_t{1} << 50;

uint64_t Sum(const std::vector<uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

uint64_t PagesOfTokens(const ModelMemory& model, uint64_t tokens) {
  return (tokens + model.page_size - 1) / model.page_size;
}

uint64_t PagesOfRequest(const ModelMemory& model, const SizeLoad& load) {
  return PagesOfTokens(model, uint64_t{load.input_len} + load.output_len);
}

// Of so many requests; one context at the least, or a replica would not start.
uint64_t PagesOfRequests(const ModelMemory& model, const SizeLoad& load, uint64_t requests) {
  return std::max(requests * PagesOfRequest(model, load),
                  PagesOfTokens(model, model.context_length));
}

Status CheckLoad(const ModelMemory& model, const SizeLoad& load, const ReplicaRate& rate) {
  if (uint64_t{load.input_len} + load.output_len > model.context_length) {
    return absl::InvalidArgumentError(StrCat("--input-len ", load.input_len, " and --output-len ",
                                             load.output_len, " are more than the context of ",
                                             model.context_length, " tokens"));
  }
  if (rate.output == 0 && (load.tokens_per_second > 0 || load.inter_token_ms > 0)) {
    return absl::InvalidArgumentError(
        StrCat(load.tokens_per_second > 0 ? "--tokens-per-second" : "--inter-token-ms",
               " needs to know what a replica does: --measured FILE, what 'flotilla bench offline "
               "--json' printed, or --measured-output-rate"));
  }
  if (rate.prompt == 0 && load.ttft_ms > 0) {
    return absl::InvalidArgumentError(
        "--ttft-ms needs to know how fast a replica reads prompts: --measured-prompt-rate, the "
        "prompt_tokens over the seconds of 'flotilla bench offline --output-len 1 --json'");
  }
  return OkStatus();
}

struct SizeLimit {
  uint64_t requests;    // at once, a replica, at most
  const char* because;  // flag
};

// Within --replica-memory.
StatusOr<SizeLimit> MemoryLimit(const ModelMemory& model, const SizeLoad& load) {
  const uint64_t page_bytes = model.ReplicaPageBytes();
  const uint64_t fixed =  // a MiB: --kv-cache-memory is in whole ones
      model.ReplicaWeightBytes() + kReplicaOverheadBytes + kMiB;
  const uint64_t context_bytes = PagesOfTokens(model, model.context_length) * page_bytes;
  if (load.replica_memory < fixed + context_bytes) {
    return absl::InvalidArgumentError(StrCat(
        "--replica-memory ", FormatBytes(load.replica_memory), " is less than the ",
        FormatBytes(model.ReplicaWeightBytes()), " of the weights, the ",
        FormatBytes(context_bytes), " of one context of ", model.context_length, " tokens and ",
        FormatBytes(kReplicaOverheadBytes), " besides; raise it, or lower --context-length"));
  }
  const uint64_t request_bytes = PagesOfRequest(model, load) * page_bytes;
  CHECK(request_bytes > 0);
  return SizeLimit{(load.replica_memory - fixed) / request_bytes, "--replica-memory"};
}

// Whose prompts are read within --ttft-ms.
StatusOr<SizeLimit> TtftLimit(const SizeLoad& load, const ReplicaRate& rate) {
  const double prompt_ms = load.input_len / (rate.prompt * load.utilization) * 1e3;
  if (prompt_ms > load.ttft_ms) {
    return absl::InvalidArgumentError(StrCat(
        "--ttft-ms ", load.ttft_ms, ": one prompt of ", load.input_len, " tokens alone takes ",
        std::ceil(prompt_ms), " ms at ", rate.prompt * load.utilization,
        " tokens a second; raise it, lower --input-len, or give a replica more cores"));
  }
  return SizeLimit{static_cast<uint64_t>(load.ttft_ms / prompt_ms), "--ttft-ms"};
}

StatusOr<std::vector<SizeLimit>> Limits(const ModelMemory& model, const SizeLoad& load,
                                        const ReplicaRate& rate) {
  std::vector<SizeLimit> limits = {{kMaxRunningRequestsFlag.max, "--requests"}};
  if (load.replica_memory > 0) {
    ASSIGN_OR_RETURN(limits.emplace_back(), MemoryLimit(model, load));
  }
  if (load.ttft_ms > 0) {
    ASSIGN_OR_RETURN(limits.emplace_back(), TtftLimit(load, rate));
  }
  return limits;
}

// Output tokens a second that are asked for, and by which flag.
std::pair<double, const char*> WantedRate(const SizeLoad& load) {
  const double by_slo = load.inter_token_ms > 0 ? load.requests * 1e3 / load.inter_token_ms : 0;
  if (by_slo > load.tokens_per_second) return {by_slo, "--inter-token-ms"};
  return {load.tokens_per_second, "--tokens-per-second"};
}

}  // namespace

uint64_t ModelMemory::ReplicaPageBytes() const { return Sum(page_bytes); }
uint64_t ModelMemory::ReplicaWeightBytes() const { return Sum(weight_bytes); }

StatusOr<SizePlan> PlanSize(const ModelMemory& model, const SizeLoad& load,
                            const ReplicaRate& rate) {
  CHECK(model.page_size > 0 && model.ReplicaPageBytes() > 0);
  CHECK(load.requests > 0 && load.input_len > 0);
  RETURN_IF_ERROR(CheckLoad(model, load, rate));
  ASSIGN_OR_RETURN(const std::vector<SizeLimit> limits, Limits(model, load, rate));
  SizePlan plan;
  plan.because = "--requests";
  uint64_t replicas = 1;
  const auto at_least = [&](double count, const char* because) {
    if (count <= static_cast<double>(replicas)) return;
    replicas = static_cast<uint64_t>(std::min(count, 1e9));
    plan.because = because;
  };
  for (const SizeLimit& limit : limits) {
    at_least(std::ceil(static_cast<double>(load.requests) / static_cast<double>(limit.requests)),
             limit.because);
  }
  const auto [wanted, because] = WantedRate(load);
  if (wanted > 0) at_least(std::ceil(wanted / (rate.output * load.utilization)), because);
  plan.replicas = static_cast<uint32_t>(replicas);
  plan.requests = static_cast<uint32_t>((load.requests + replicas - 1) / replicas);

  const uint64_t pages = PagesOfRequests(model, load, plan.requests);
  const uint64_t page_bytes = model.ReplicaPageBytes();
  if (pages > std::numeric_limits<uint32_t>::max() || pages > kMostKvBytes / page_bytes) {
    return absl::InvalidArgumentError(
        StrCat("--requests: the KV cache of ", plan.requests,
               " requests of that length would be larger than any replica's can be; ask for fewer "
               "at once or shorter ones"));
  }
  plan.kv_cache_memory = (pages * page_bytes + kMiB - 1) / kMiB * kMiB;
  // What a worker makes of that flag.
  ASSIGN_OR_RETURN(plan.pages,
                   HostKvPages({plan.kv_cache_memory, std::numeric_limits<uint64_t>::max(),
                                model.page_bytes, model.page_size, model.context_length}));
  CHECK(plan.pages >= pages);
  for (size_t rank = 0; rank < model.page_bytes.size(); ++rank) {
    plan.rank_bytes.push_back(model.weight_bytes[rank] + plan.pages * model.page_bytes[rank]);
  }
  plan.replica_bytes = Sum(plan.rank_bytes) + kReplicaOverheadBytes;
  plan.tokens_per_second = rate.output * load.utilization * plan.replicas;
  return plan;
}

}  // namespace flotilla::bench
