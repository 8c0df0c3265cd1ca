#include "deploy/launcher/command_lines.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/flags.h"
#include "common/base/listen.h"
#include "common/tls/tls_flags.h"

namespace flotilla {
namespace {

class Argv {
 public:
  explicit Argv(std::string program) : args_{std::move(program)} {}
  template <typename T>
  Argv& Flag(const char* name, const T& value) {
    args_.push_back(name);
    args_.push_back(absl::StrCat(value));
    return *this;
  }
  Argv& List(const char* name, const std::vector<uint32_t>& values) {
    return values.empty() ? *this : Flag(name, absl::StrJoin(values, ","));
  }
  Argv& Switch(const char* name, bool on) {
    if (on) args_.push_back(name);
    return *this;
  }
  // Unless `more` has it.
  template <typename T>
  Argv& Default(const std::vector<std::string>& more, const std::string& name, T value) {
    const bool given = std::any_of(more.begin(), more.end(), [&](const std::string& flag) {
      return flag == name || flag.starts_with(name + "=");
    });
    return given ? *this : Flag(name.c_str(), value);
  }
  Argv& Raw(const std::vector<std::string>& more) {
    args_.insert(args_.end(), more.begin(), more.end());
    return *this;
  }
  Argv& Log(const LogOptions& log) {
    return Flag("--log-level", log.level).Flag("--log-format", log.format);
  }
  Argv& Tls(const TlsPaths& tls) {
    for (const auto& [name, path] : {std::pair(kTlsCertFileFlag.name, &tls.cert_file),
                                     std::pair(kTlsKeyFileFlag.name, &tls.key_file),
                                     std::pair(kTlsClientCaFileFlag.name, &tls.ca_file)}) {
      if (!path->empty()) Flag(name, *path);
    }
    return *this;
  }
  // Of the model runner: what all ranks of a replica agree on.
  Argv& Runner(const ServeOptions& o) {
    return Flag("--kv-cache-memory", o.kv_cache_memory)
        .Flag("--page-size", o.page_size)
        .Flag("--context-length", o.context_length)
        .Flag("--max-running-requests", o.max_running_requests)
        .Flag("--chunked-prefill-size", o.chunked_prefill_size);
  }
  // worker: its number among those of this host.
  Argv& Device(const ServeOptions& o, uint32_t worker) {
    Flag("--device", o.device);
    if (o.device == "cpu") return *this;
    return Flag("--gpu-memory-utilization", o.gpu.gpu_memory_utilization)
        .Flag("--gpu-weights", o.gpu.gpu_weights)
        .Flag("--gpu", o.gpus.empty() ? worker : o.gpus.at(worker))
        .Flag("--graph-mode", o.gpu.graph_mode)
        .List("--cuda-graph-sizes", o.gpu.cuda_graph_sizes)
        .Flag("--cuda-graph-max-size", o.gpu.cuda_graph_max_size)
        .Switch("--disable-batch-invariance", o.gpu.disable_batch_invariance)
        .Switch("--disable-custom-all-reduce", o.gpu.disable_custom_all_reduce);
  }
  std::vector<std::string> Take() { return std::move(args_); }

 private:
  std::vector<std::string> args_;
};

std::string Ipc(const std::string& path) { return "ipc://" + path; }

// Who lets a process go without a heartbeat for longer lets its steps take as long, too.
int64_t StepTimeoutMs(const ServeOptions& options) {
  constexpr double kLeastSeconds = 120;
  return static_cast<int64_t>(std::max(kLeastSeconds, options.watchdog_timeout) * 1000);
}

}  // namespace

std::string SocketPath(const ResolvedOptions& resolved, uint32_t replica, const std::string& what) {
  return absl::StrCat(resolved.runtime_dir, "/r", replica, "-", what);
}

std::vector<std::string> SchedulerArgv(const ResolvedOptions& r, const ReplicaWiring& w) {
  const ServeOptions& o = r.options;
  Argv argv(r.bin_dir + "/flotilla-scheduler");
  argv.Flag("--replica-id", w.id)
      .Flag("--tp", r.tp)
      .Flag("--model", r.model_path)
      .Flag("--model-name", r.model_name);
  if (!o.chat_template.empty()) argv.Flag(kChatTemplateFlag.name, o.chat_template);
  for (const std::string& address : w.listen) {
    argv.Flag("--listen", address);
    if (!IsUnixAddress(address)) argv.Tls(o.tls);
  }
  return argv.Flag("--control-fd", w.control_fd)
      .Flag("--step-ring-fd", w.step_ring_fd)
      .Flag("--result-ring-fd", w.result_ring_fd)
      .Flag("--collective-fd", w.collective_fd)
      .Flag("--flight-fd", w.flight_fd)
      .Flag("--detokenizer-request-socket", Ipc(SocketPath(r, w.index, "detok-req")))
      .Flag("--detokenizer-reply-socket", Ipc(SocketPath(r, w.index, "detok-rep")))
      .Flag("--metrics-socket", SocketPath(r, w.index, "scheduler.metrics"))
      .Flag("--max-running-requests", o.max_running_requests)
      .Flag("--max-queued-requests", o.max_queued_requests)
      .Flag("--max-prefill-tokens", o.max_prefill_tokens)
      .Flag("--decode-log-interval", o.decode_log_interval)
      .Flag("--step-timeout-ms", StepTimeoutMs(o))
      .Flag("--chunked-prefill-size", o.chunked_prefill_size)
      .Flag("--page-size", o.page_size)
      .Flag("--context-length", o.context_length)
      .Flag("--max-step-ms", o.max_step_ms)
      .Flag("--speculative-num-draft-tokens", o.speculative_num_draft_tokens)
      .Flag("--schedule-policy", o.schedule_policy)
      .Flag("--schedule-max-overtakes", o.schedule_max_overtakes)
      .Flag("--priority-scheduling-preemption-threshold",
            o.priority_scheduling_preemption_threshold)
      .Flag("--schedule-conservativeness", o.schedule_conservativeness)
      .Flag("--eviction-policy", o.eviction_policy)
      .Flag("--drain-grace-ms", static_cast<int64_t>(r.scheduler_grace * 1000))
      .Switch("--disable-radix-cache", o.disable_radix_cache)
      .Switch("--disable-mixed-chunk", o.disable_mixed_chunk)
      .Switch("--disable-overlap", o.disable_overlap)
      .Log(o.log)
      .Raw(o.scheduler_flags)
      .Take();
}

std::vector<std::string> WorkerArgv(const ResolvedOptions& r, const ReplicaWiring& w,
                                    uint32_t rank) {
  const ServeOptions& o = r.options;
  Argv argv(r.bin_dir + "/flotilla-worker");
  const HostSpan& span = r.span;
  const uint32_t worker = w.index * span.local_ranks + rank - span.first_rank;
  if (!r.cpus.empty()) argv.List("--cpus", r.cpus[worker]);
  if (span.several_hosts()) {
    argv.Flag("--local-ranks", span.local_ranks)
        .Flag("--collective-address", span.CollectiveAddress())
        .Flag("--link-secret-file", span.link_secret_file);
  }
  if (span.joined) {
    argv.Flag("--digest-file", r.runtime_dir + "/model-digest")
        .Flag("--head", span.PlanAddress(rank));
  }
  return argv.Flag("--rank", rank)
      .Flag("--tp", r.tp)
      .Flag("--model", r.model_path)
      .Device(o, worker)
      .Flag("--isa", o.isa)
      .Flag("--dtype", o.dtype)
      .Flag("--kv-cache-dtype", o.kv_cache_dtype)
      .Flag("--threads", r.threads)
      .Flag("--pack-cache-dir", o.pack_cache_dir)
      .Flag("--control-fd", w.control_fd)
      .Flag("--step-ring-fd", w.step_ring_fd)
      .Flag("--result-ring-fd", w.result_ring_fd)
      .Flag("--collective-fd", w.collective_fd)
      .Runner(o)
      .List("--precompile-token-paddings", o.precompile_token_paddings)
      .List("--precompile-bs-paddings", o.precompile_bs_paddings)
      .Switch("--disable-precompile", o.disable_precompile)
      .Flag("--spin-us", r.spin_us)
      .Flag("--metrics-socket", SocketPath(r, w.index, absl::StrCat("worker-", rank, ".metrics")))
      .Log(o.log)
      .Raw(o.worker_flags)
      .Take();
}

std::vector<std::string> RankProxyArgv(const ResolvedOptions& r, const ReplicaWiring& w,
                                       uint32_t rank) {
  const ServeOptions& o = r.options;
  return Argv(r.bin_dir + "/flotilla-rank-proxy")
      .Flag("--rank", rank)
      .Flag("--tp", r.tp)
      .Flag("--listen", r.span.PlanAddress(rank))
      .Flag("--link-secret-file", r.span.link_secret_file)
      .Flag("--model", r.model_path)
      .Flag("--digest-file", r.runtime_dir + "/model-digest")
      .Flag("--device", o.device)
      .Flag("--dtype", o.dtype)
      .Flag("--kv-cache-dtype", o.kv_cache_dtype)
      .Runner(o)
      .Flag("--control-fd", w.control_fd)
      .Flag("--step-ring-fd", w.step_ring_fd)
      .Flag("--metrics-socket", SocketPath(r, w.index, absl::StrCat("worker-", rank, ".metrics")))
      .Log(o.log)
      .Take();
}

std::vector<std::string> DetokenizerArgv(const ResolvedOptions& r, const ReplicaWiring& w) {
  return Argv(r.bin_dir + "/flotilla-detokenizer")
      .Flag("--model", r.model_path)
      .Flag("--control-fd", w.control_fd)
      .Flag("--request-socket", Ipc(SocketPath(r, w.index, "detok-req")))
      .Flag("--reply-socket", Ipc(SocketPath(r, w.index, "detok-rep")))
      .Flag("--metrics-socket", SocketPath(r, w.index, "detokenizer.metrics"))
      .Log(r.options.log)
      .Take();
}

std::vector<std::string> RouterArgv(const ResolvedOptions& r, const RouterWiring& w) {
  const ServeOptions& o = r.options;
  Argv argv(r.bin_dir + "/flotilla-router");
  argv.Flag("--config", "none");  // what is left out here has its default
  argv.Flag("--host", o.host).Flag("--port", w.port).Flag("--grpc-port", w.grpc_port);
  for (const std::string& address : w.replicas) argv.Flag("--replica", address);
  argv.Tls(o.tls);
  if (!o.api_keys_file.empty()) argv.Flag(kApiKeysFileFlag.name, o.api_keys_file);
  for (const std::string& origin : o.cors_allow_origin)
    argv.Flag(kCorsAllowOriginFlag.name, origin);
  if (!o.otlp_traces_endpoint.empty())
    argv.Flag(kOtlpTracesEndpointFlag.name, o.otlp_traces_endpoint)
        .Flag("--trace-sample-ratio", o.trace_sample_ratio);
  if (!o.default_chat_template_kwargs.empty())
    argv.Flag(kDefaultChatTemplateKwargsFlag.name, o.default_chat_template_kwargs);
  return argv.Flag("--policy", o.policy)
      .Flag(kSseKeepaliveFlag.name, o.sse_keepalive)
      .Flag(kUiFlag.name, o.ui)
      .Flag(kUiRequestsFlag.name, o.ui_requests)
      .Flag(kLogSlowMsFlag.name, o.log_slow_ms)
      .Flag(kToolCallParserFlag.name, o.tool_call_parser)
      .Flag(kReasoningParserFlag.name, o.reasoning_parser)
      .Flag(kSamplingDefaultsFlag.name, o.sampling_defaults)
      .Flag("--notify-fd", w.notify_fd)
      .Default(o.router_flags, "--drain-grace-ms", static_cast<int64_t>(o.shutdown_timeout * 1000))
      .Default(o.router_flags, "--drain-linger-ms", 0)  // there is no other router to go to
      .Flag("--metrics-socket", r.runtime_dir + "/router.metrics")
      .Flag("--handoff-socket", r.runtime_dir + "/router.handoff")
      .Log(o.log)
      .Raw(o.router_flags)
      .Take();
}

}  // namespace flotilla
