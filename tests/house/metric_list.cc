// Prints every metric that some process has, as one page of /metrics: what docs/metrics.md is made
// from. Each comes from the code that the process itself runs.
#include <cstdio>
#include <memory>

#include "common/base/clock.h"
#include "common/tls/certificate_metric.h"
#include "deploy/launcher/metrics_merge.h"
#include "deploy/launcher/process_metrics.h"
#include "detokenizer_proc/detokenizer_metrics.h"
#include "router/admission/tenant_limits.h"
#include "router/base/router_metrics.h"
#include "scheduler_proc/front/keyed_results.h"
#include "scheduler_proc/grammar/grammar_compiler.h"
#include "scheduler_proc/loop/loop_metrics.h"
#include "shm/ring_metrics.h"
#include "worker_proc/comm/plan_link_metrics.h"
#include "worker_proc/comm/timed_collective.h"
#include "worker_proc/runner/worker_metrics.h"

namespace flotilla {
namespace {

// Families whose labels come with the first use are used once.
std::string AllMetrics() {
  prometheus::Registry router, scheduler, worker, detokenizer;
  RouterMetrics router_metrics(&router);
  router_metrics.Request("/v1/completions", "200", 0);
  router_metrics.Backend("r0", true, 0, 0);
  router_metrics.CacheIndex("r0", 0, 0);
  const RealClock clock;
  const auto tenants = std::make_shared<TenantLimits>(&clock, &router);
  tenants->Enter(std::make_shared<Tenant>(Tenant{.name = "acme"}));
  CertificateExpiryMetric("router", &router)("tls-cert-file", 0);
  CertificateExpiryMetric("scheduler", &scheduler)("tls-cert-file", 0);
  const GrammarMetrics grammar_metrics(&scheduler);
  const KeyedMetrics keyed_metrics(&scheduler, {{"model", "model"}, {"replica", "r0"}});
  LoopMetrics loop_metrics({.model = "model", .replica = "r0"}, &scheduler);
  loop_metrics.OnServing(true, 1);
  AddGauge(&scheduler, RingFillRatioSpec("step"));
  const WorkerMetrics worker_metrics(&worker, 0);
  const TimedCollective collective(MakeSingleRankCollective(), &clock, &worker);
  const PlanLinkMetrics plan_link(&worker, 1);
  const DetokenizerMetrics detokenizer_metrics(&detokenizer);
  ProcessMetrics launcher;
  launcher.Wire(nullptr, nullptr, "router", "", "").up(true);
  for (const char* process : {"scheduler", "worker-0", "detokenizer"})
    launcher.Wire(nullptr, nullptr, process, "r0", "").up(true);

  const MetricLabels of_replica = {{"replica", "r0"}};
  MetricsMerger merger;
  merger.Add(RenderMetrics(router), {});
  for (const prometheus::Registry* registry : {&scheduler, &worker, &detokenizer})
    merger.Add(RenderMetrics(*registry), of_replica);
  merger.Add(RenderMetrics(*launcher.registry()), {});
  merger.Add(RenderProcessMetrics("worker-0"), of_replica);
  return merger.Render();
}

}  // namespace
}  // namespace flotilla

int main() { std::fputs(flotilla::AllMetrics().c_str(), stdout); }
