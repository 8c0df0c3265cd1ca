#include "deploy/launcher/options.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "common/base/cpu_features.h"
#include "common/base/flag_checks.h"
#include "common/cli/json_flag.h"
#include "common/tls/tls_flags.h"
#include "shm/replica_control.h"

namespace flotilla {
namespace {

CLI::Validator TpFlag() {
  return CLI::Validator(
      [](std::string& input) -> std::string {
        if (input == "auto") return {};
        uint32_t ranks = 0;
        const auto [end, error] = std::from_chars(input.data(), input.data() + input.size(), ranks);
        if (error == std::errc() && end == input.data() + input.size() && ranks >= 1 &&
            ranks <= kMaxRanks)
          return {};
        return "'" + input + "' is neither 'auto' nor a number of ranks from 1 to " +
               std::to_string(kMaxRanks);
      },
      "auto|N");
}

// A label of metrics, a prefix in logs and the beginning of files' names.
CLI::Validator ReplicaNameFlag() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        const bool fits = !text.empty() && text.size() <= 63 && text[0] != '-' && text[0] != '.' &&
                          std::all_of(text.begin(), text.end(), [](char c) {
                            return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                                   c == '_' || c == '.';
                          });
        return fits ? ""
                    : "'" + text +
                          "' is no name: up to 63 letters, digits, '-', '_' and '.', the first "
                          "none of '-' and '.'";
      },
      "");
}

void AddReplicaNameFlag(CLI::App* app, const char* help, ServeOptions* o) {
  app->add_option("--replica-name", o->replica_name, help)->check(ReplicaNameFlag());
}

void AddGrpcPortFlag(CLI::App* app, ServeOptions* o) {
  app->add_option("--grpc-port", o->grpc_port, "gRPC port; 0: any free one")
      ->check(PortFlag())
      ->capture_default_str();
}

void AddModelFlags(CLI::App* app, ServeOptions* o) {
  app->add_option("--model", o->model,
                  "Path of a .gguf file or of a model folder with safetensors, or 'default' "
                  "(SmolLM2-135M-Instruct)")
      ->capture_default_str();
  app->add_option("--model-name", o->model_name,
                  "The name clients call it by (default: from the file's name)");
  app->add_option(
         "--tp", o->tp,
         "Tensor-parallel workers a replica, at most one a query head; auto: 1, whose threads "
         "use the replica's cores, or one a NUMA node")
      ->check(TpFlag())
      ->capture_default_str();
  AddFlag(app, kDeviceFlag, &o->device);
  AddGpuFlags(app, &o->gpu);
  app->add_option("--gpus", o->gpus,
                  "The GPU of each worker of this host, replica by replica, as CUDA numbers them, "
                  "comma-separated; none: 0, 1, …")
      ->check(CLI::Range(0u, 1023u))
      ->delimiter(',');
  AddFlag(app, kThreadsFlag, &o->threads);
  app->add_option("--pin", o->pin,
                  "Keep each compute thread on a core of its own. auto: if nobody else may use "
                  "these cores and it is of use; see flotilla doctor")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app->add_option("--isa", o->isa, "Instruction set of the CPU backend")
      ->check(CLI::IsMember(IsaChoices()))
      ->capture_default_str();
  AddFlag(app, kDtypeFlag, &o->dtype);
  AddFlag(app, kKvCacheDtypeFlag, &o->kv_cache_dtype);
  AddFlag(app, kPackCacheDirFlag, &o->pack_cache_dir);
  app->add_option("--kv-cache-memory", o->kv_cache_memory,
                  "KV cache of one replica over all its ranks, e.g. 2GiB; 0: 512 MiB, or one "
                  "context if that takes more, at most a quarter of what is free; on a GPU what "
                  "--gpu-memory-utilization leaves")
      ->transform(BytesFlag())
      ->capture_default_str();
  AddFlag(app, kPageSizeFlag, &o->page_size);
  app->add_option("--context-length", o->context_length,
                  "Longest prompt and output together, tokens; 0: the model's")
      ->capture_default_str();
}

void AddLinkSecretFlag(CLI::App* app, ServeOptions* o) {
  app->add_option("--link-secret-file", o->link_secret_file,
                  "File whose first line is the secret of all hosts of the replica, at least 16 "
                  "characters that others can't read");
}

void AddHeadFlags(CLI::App* app, ServeOptions* o) {
  app->add_option("--remote-ranks", o->remote_ranks,
                  "How many of --tp's ranks, the last ones, run on hosts of their own, each with "
                  "flotilla join")
      ->check(CLI::Range(0u, kMaxRanks - 1))
      ->capture_default_str();
  app->add_option("--join-address", o->join_address,
                  "HOST:PORT of this host where they find it; as many ports from there on as there "
                  "are ranks");
  AddLinkSecretFlag(app, o);
}

// What workers need of a step.
void AddStepFlags(CLI::App* app, ServeOptions* o) {
  AddFlag(app, kChunkedPrefillSizeFlag, &o->chunked_prefill_size);
  AddFlag(app, kMaxRunningRequestsFlag, &o->max_running_requests);
  AddFlag(app, kTokenPaddingsFlag, &o->precompile_token_paddings);
  AddFlag(app, kBsPaddingsFlag, &o->precompile_bs_paddings);
  AddFlag(app, kDisablePrecompileFlag, &o->disable_precompile);
}

void AddSchedulerFlags(CLI::App* app, ServeOptions* o) {
  AddFlag(app, kChatTemplateFlag, &o->chat_template)->check(CLI::ExistingFile);
  AddStepFlags(app, o);
  AddFlag(app, kMaxQueuedRequestsFlag, &o->max_queued_requests);
  AddFlag(app, kMaxPrefillTokensFlag, &o->max_prefill_tokens);
  AddFlag(app, kMaxStepMsFlag, &o->max_step_ms);
  AddFlag(app, kSpeculativeNumDraftTokensFlag, &o->speculative_num_draft_tokens);
  AddFlag(app, kSchedulePolicyFlag, &o->schedule_policy);
  AddFlag(app, kScheduleMaxOvertakesFlag, &o->schedule_max_overtakes);
  AddFlag(app, kPriorityPreemptionFlag, &o->priority_scheduling_preemption_threshold);
  app->add_option("--schedule-conservativeness", o->schedule_conservativeness,
                  "Above 1: fewer requests run at once, and fewer are retracted; below 1: more")
      ->check(CLI::Range(0.0, 1e3))
      ->capture_default_str();
  AddFlag(app, kEvictionPolicyFlag, &o->eviction_policy);
  app->add_flag("--disable-radix-cache", o->disable_radix_cache,
                "Do not reuse the KV of equal prefixes");
  app->add_flag("--disable-mixed-chunk", o->disable_mixed_chunk,
                "Prefill chunks and decodes in separate steps, prefill first");
  app->add_flag("--disable-overlap", o->disable_overlap,
                "Plan a step only when the one before is done");
}

void AddOperationFlags(CLI::App* app, ServeOptions* o) {
  app->add_option("--metrics-port", o->metrics_port,
                  "Port of /metrics for all processes; 0: any. If only the default is taken: any")
      ->check(PortFlag())
      ->each([o](const std::string&) { o->metrics_port_given = true; })
      ->capture_default_str();
  app->add_option(
         "--watchdog-timeout", o->watchdog_timeout,
         "Seconds without a heartbeat after which a process that has loaded is replaced; also "
         "what a step may take, if that is more than 120")
      ->check(CLI::Range(2.0, 86400.0))
      ->capture_default_str();
  app->add_option("--startup-timeout", o->startup_timeout,
                  "Seconds without a heartbeat after which a process that still loads is replaced; "
                  "while it makes progress it may take longer")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  app->add_option("--shutdown-timeout", o->shutdown_timeout,
                  "Seconds that running requests get to finish after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  AddFlag(app, kDecodeLogIntervalFlag, &o->decode_log_interval);
  AddLogFlags(app, &o->log);
  // An empty group hides an option from --help.
  for (auto [flag, field] : {std::pair{"--worker-flag", &o->worker_flags},
                             std::pair{"--scheduler-flag", &o->scheduler_flags},
                             std::pair{"--router-flag", &o->router_flags}}) {
    app->add_option(flag, *field, "Passed on to the process as it is; repeatable")
        ->allow_extra_args(false)
        ->group("");
  }
  app->add_option("--bin-dir", o->bin_dir, "Where the processes' binaries are")->group("");
}

void AddFlightFlags(CLI::App* app, ServeOptions* o) {
  app->add_option(
         "--flight-recorder-size", o->flight_recorder_size,
         "Memory of each scheduler for its last decisions, prompts included, which are saved if "
         "it dies (see flotilla replay, flotilla trace); 0: none. Default: 256 KiB for each of "
         "--max-running-requests, from 4 MiB (32 with a GPU) to 128 MiB")
      ->transform(BytesFlag())
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 32));
  app->add_option("--flight-recorder-dir", o->flight_recorder_dir,
                  "Where they are saved; the last 8 of a replica are kept. Default: "
                  "$XDG_STATE_HOME/flotilla or ~/.local/state/flotilla");
}

}  // namespace

void AddServeFlags(CLI::App* app, ServeOptions* o) {
  app->add_option("--host", o->host, "Address to listen on; \"::\": all, 0.0.0.0: all of IPv4")
      ->capture_default_str();
  app->add_option("--port", o->port, "HTTP port; 0: any free one")
      ->check(PortFlag())
      ->capture_default_str();
  AddGrpcPortFlag(app, o);
  app->add_option("--replicas", o->replicas, "Copies of the model, each with its own processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  AddReplicaNameFlag(app,
                     "What the replica is called in metrics, logs and flotilla top; of several "
                     "NAME-0, NAME-1, … Default: r0, r1, …",
                     o);
  AddServerTlsFlags(app, &o->tls);
  AddFlag(app, kPolicyFlag, &o->policy);
  AddHeadFlags(app, o);
  AddFlag(app, kSseKeepaliveFlag, &o->sse_keepalive);
  AddFlag(app, kApiKeysFileFlag, &o->api_keys_file);
  AddFlag(app, kCorsAllowOriginFlag, &o->cors_allow_origin)->check(OriginFlag());
  AddFlag(app, kOtlpTracesEndpointFlag, &o->otlp_traces_endpoint);
  AddTraceSampleRatioFlag(app, &o->trace_sample_ratio);
  AddFlag(app, kUiFlag, &o->ui);
  AddFlag(app, kUiRequestsFlag, &o->ui_requests);
  AddFlag(app, kLogSlowMsFlag, &o->log_slow_ms);
  AddFlag(app, kToolCallParserFlag, &o->tool_call_parser);
  AddFlag(app, kReasoningParserFlag, &o->reasoning_parser);
  AddFlag(app, kDefaultChatTemplateKwargsFlag, &o->default_chat_template_kwargs)
      ->check(JsonObjectFlag());
  AddFlag(app, kSamplingDefaultsFlag, &o->sampling_defaults);
  AddModelFlags(app, o);
  AddSchedulerFlags(app, o);
  AddFlightFlags(app, o);
  AddOperationFlags(app, o);
}

void AddJoinFlags(CLI::App* app, ServeOptions* o) {
  app->add_option("--head", o->head, "HOST:PORT of the head's --join-address")->required();
  app->add_option("--rank", o->rank, "Which rank this host is")->required();
  AddLinkSecretFlag(app, o);
  app->get_option("--link-secret-file")->required();
  app->add_option("--host", o->host, "Address of /metrics; \"::\": all, 0.0.0.0: all of IPv4")
      ->capture_default_str();
  AddModelFlags(app, o);
  AddStepFlags(app, o);
  AddOperationFlags(app, o);
}

void AddEngineFlags(CLI::App* app, ServeOptions* o) {
  app->add_option("--host", o->host, "Address to listen on; \"::\": all, 0.0.0.0: all of IPv4")
      ->capture_default_str();
  AddGrpcPortFlag(app, o);
  AddReplicaNameFlag(app,
                     "What the replica is called in metrics, logs and flotilla top: give one where "
                     "a host has several. Default: the host's name",
                     o);
  AddServerTlsFlags(app, &o->tls);
  AddHeadFlags(app, o);
  AddModelFlags(app, o);
  AddSchedulerFlags(app, o);
  AddFlightFlags(app, o);
  AddOperationFlags(app, o);
}

}  // namespace flotilla
