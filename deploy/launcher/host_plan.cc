#include "deploy/launcher/host_plan.h"

#include "deploy/launcher/model.h"

namespace flotilla {
namespace {

CoreRequest CoreRequestOf(const ServeOptions& options, const ModelConfig* model) {
  CoreRequest request;
  request.tp = options.tp;
  if (options.device != "cpu" && options.tp == "auto") request.tp = "1";  // a GPU each
  request.threads = options.threads;
  request.replicas = options.replicas;
  request.pin = options.pin;
  request.query_heads = model == nullptr ? UINT32_MAX : model->num_attention_heads;
  request.kv_heads = model == nullptr ? UINT32_MAX : model->num_key_value_heads;
  return request;
}

}  // namespace

StatusOr<HostPlan> PlanHost(const Machine& machine, const ServeOptions& options,
                            const HostSpan& span, const ModelConfig* model) {
  HostPlan plan;
  plan.span = span;
  CoreRequest request = CoreRequestOf(options, model);
  if (span.several_hosts()) {
    ASSIGN_OR_RETURN(plan.tp, ResolveTp(options.tp, request.query_heads));
    request.tp = StrCat(span.local_ranks);
  }
  ASSIGN_OR_RETURN(plan.cores, PlanCores(machine, request));
  if (!span.several_hosts()) {
    plan.tp = plan.cores.tp;
    plan.span.local_ranks = plan.cores.tp;
  }
  const size_t workers = size_t{options.replicas} * plan.span.local_ranks;
  if (!options.gpus.empty() && options.gpus.size() < workers) {
    return absl::InvalidArgumentError(
        StrCat("--gpus names ", options.gpus.size(), " for ", workers, " workers; each needs one"));
  }
  return plan;
}

}  // namespace flotilla
