// What `serve` and `engine` take on their command line. Every flag is spelled as its field, and its
// default is the field's: the launcher passes all of them on, so the processes' own never apply.
//
// Threads: plain data, filled once in main. Errors: AddServeFlags' validators end the process with
// status 2 and a message that names the flag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/flags.h"
#include "common/base/log.h"
#include "common/tls/tls_files.h"

namespace flotilla {

struct ServeOptions {
  // Where clients connect. Port 0: any free one; the ready line says which.
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  uint16_t grpc_port = 50051;
  uint16_t metrics_port = 9400;
  TlsPaths tls;                     // of these ports but the metrics' one
  bool metrics_port_given = false;  // a default that is taken gives way to any free port

  // The cluster.
  uint32_t replicas = 1;
  std::string replica_name;  // empty: the host's name (engine), r0, r1, … (serve)
  std::string tp = "auto";   // "auto" or a number of ranks
  std::string policy = "round_robin";
  std::string api_keys_file;    // empty: everybody may call
  uint32_t sse_keepalive = 15;  // seconds
  std::vector<std::string> cors_allow_origin;
  std::string otlp_traces_endpoint;
  double trace_sample_ratio = 1;
  std::string ui = "on";
  uint32_t ui_requests = 64;
  uint32_t log_slow_ms = 2500;
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string default_chat_template_kwargs;  // a JSON object; empty: none
  std::string sampling_defaults = "model";

  // Several hosts a replica: on the head …
  uint32_t remote_ranks = 0;
  std::string join_address;  // HOST:PORT
  std::string link_secret_file;
  // … and on the others.
  std::string head;  // HOST:PORT
  uint32_t rank = 1;

  // The model and its engine.
  std::string model = "default";
  std::string model_name;     // empty: made from the file's name
  std::string chat_template;  // a file; empty: the model's own
  std::string device = "cpu";
  GpuFlags gpu;
  std::vector<uint32_t> gpus;  // of each worker of this host, replica by replica; empty: 0, 1, …
  std::string isa = "auto";
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  uint32_t threads = 0;
  std::string pin = "auto";
  std::string pack_cache_dir = "auto";
  std::string kv_cache_memory = "0";  // bytes, after BytesFlag
  uint32_t page_size = 16;
  uint32_t context_length = 0;
  uint32_t chunked_prefill_size = 512;
  uint32_t max_running_requests = 64;
  uint32_t max_queued_requests = 2048;
  uint32_t max_prefill_tokens = 8192;
  uint32_t decode_log_interval = 40;
  uint32_t max_step_ms = 0;
  uint32_t speculative_num_draft_tokens = 8;
  std::vector<uint32_t> precompile_token_paddings, precompile_bs_paddings;
  bool disable_precompile = false;
  std::string schedule_policy = "fcfs";
  uint32_t schedule_max_overtakes = 8192;
  uint32_t priority_scheduling_preemption_threshold = 10;
  double schedule_conservativeness = 1;
  std::string eviction_policy = "lru";
  bool disable_radix_cache = false, disable_mixed_chunk = false, disable_overlap = false;

  // Supervision.
  std::string flight_recorder_size;  // bytes, after BytesFlag; empty: DefaultFlightBytes()
  std::string flight_recorder_dir;   // empty: DefaultFlightDir()
  double watchdog_timeout = 60;      // seconds
  double startup_timeout = 600;      // seconds
  double shutdown_timeout = 30;      // seconds

  // Passed on as they are (tests and experiments).
  std::vector<std::string> worker_flags;
  std::vector<std::string> scheduler_flags;
  std::vector<std::string> router_flags;
  std::string bin_dir;  // where the processes' binaries are; empty: beside the launcher

  LogOptions log;
};

// All flags of `serve`; `engine` has no router, hence none of its flags.
void AddServeFlags(CLI::App* app, ServeOptions* options);
void AddEngineFlags(CLI::App* app, ServeOptions* options);
// Those of `join`: what a worker needs, and where its head is.
void AddJoinFlags(CLI::App* app, ServeOptions* options);

}  // namespace flotilla
