#include "scheduler_proc/simulation/workload.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "scheduler_proc/flight/replay.h"

namespace flotilla {
namespace {

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9ull;
  return value ^ (value >> 32);
}

uint32_t Length(double mean, std::mt19937_64* random) {
  std::exponential_distribution<double> length(1 / mean);
  return static_cast<uint32_t>(std::clamp(length(*random), mean / 4, mean * 8)) + 1;
}

}  // namespace

std::vector<SimRequest> PoissonWorkload(const PoissonOptions& options) {
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> gap(options.rate);
  std::vector<SimRequest> requests(options.num_requests);
  double seconds = 0;
  for (SimRequest& request : requests) {
    seconds += gap(random);
    request.arrival_ns = static_cast<int64_t>(seconds * 1e9);
    request.prompt_tokens = options.prefix_tokens + Length(options.prompt_tokens, &random);
    request.output_tokens = Length(options.output_tokens, &random);
    request.max_new_tokens = request.output_tokens;
    request.prefix = options.prefix_tokens > 0;
    request.prefix_tokens = options.prefix_tokens;
  }
  return requests;
}

StatusOr<std::vector<SimRequest>> RecordedWorkload(const std::vector<std::string>& records) {
  std::vector<SimRequest> requests;
  struct Live {
    size_t index = 0;
    uint32_t num_tokens = 0;
  };
  absl::flat_hash_map<ReqId, Live> live;
  const auto ended = [&](ReqId id, uint32_t num_tokens) {
    const auto found = live.find(id);
    if (found == live.end()) return;
    requests[found->second.index].output_tokens = std::max(1u, num_tokens);
    live.erase(found);
  };
  const auto add = [&](const ReqSpec& spec, int64_t arrival_ns, uint32_t num_tokens) {
    live[spec.id] = {requests.size(), num_tokens};
    SimRequest& request = requests.emplace_back();
    request.arrival_ns = arrival_ns;
    request.prompt_ids = spec.prompt_ids;
    request.prompt_tokens = static_cast<uint32_t>(spec.prompt_ids.size());
    // An embedding costs what a prompt with one token of output does.
    request.max_new_tokens = request.output_tokens = std::max(1u, spec.max_new_tokens);
    request.tenant = spec.cache_salt;
    request.priority = spec.priority;
  };
  const auto look = [&](const ReplayMoment& moment) {
    const FlightRecord& record = moment.record;
    if (moment.begins) {
      const absl::flat_hash_map<ReqId, Live> before = std::exchange(live, {});
      for (const Scheduler::Progress& progress : moment.core.LiveRequests()) {
        const auto found = before.find(progress.spec.id);
        if (found == before.end()) {
          add(progress.spec, progress.spec.arrival_ns, progress.num_output);
        } else {  // calls are missing, but it has been seen
          live[progress.spec.id] = {found->second.index, progress.num_output};
        }
      }
    }
    if (record.kind == FlightKind::kAdd && record.ok) {
      const int64_t arrival_ns = record.spec.arrival_ns;
      add(record.spec, arrival_ns > 0 ? arrival_ns : record.now_ns, 0);
    }
    for (const ReqOutput& output : moment.outputs) {
      const auto found = live.find(output.id);
      if (found != live.end()) found->second.num_tokens += output.token.has_value();
      if (output.finish != Finish::kNone) ended(output.id, output.completion_tokens);
    }
    if (record.kind == FlightKind::kAbort && live.contains(record.id)) {
      ended(record.id, live[record.id].num_tokens);
    }
  };
  ASSIGN_OR_RETURN(const ReplayReport report, Replay(records, look));
  if (!report.difference.empty()) return absl::DataLossError(report.difference);
  if (requests.empty()) return absl::InvalidArgumentError("it has no request");
  const auto earlier = [](const SimRequest& a, const SimRequest& b) {
    return a.arrival_ns < b.arrival_ns;
  };
  std::stable_sort(requests.begin(), requests.end(), earlier);
  const int64_t origin_ns = requests.front().arrival_ns;
  for (SimRequest& request : requests) request.arrival_ns -= origin_ns;
  return requests;
}

std::vector<int32_t> MakePrompt(const SimRequest& request, uint64_t index, uint32_t vocab_size) {
  if (!request.prompt_ids.empty()) return request.prompt_ids;
  std::vector<int32_t> ids(request.prompt_tokens);
  for (uint32_t i = 0; i < request.prompt_tokens; ++i) {
    const bool shared = request.prefix != 0 && i < request.prefix_tokens;
    const uint64_t stream = shared ? ~request.prefix : index;
    ids[i] = static_cast<int32_t>(1 + Mix((stream << 24) ^ i) % (vocab_size - 1));
  }
  return ids;
}

}  // namespace flotilla
