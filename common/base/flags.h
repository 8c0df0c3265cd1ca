// Command lines (CLI11): what all our processes share.
//
// A flag, the config field behind it and the manifest's key are spelled alike; each default is
// written once, in the options struct that the flag fills.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"

namespace flotilla {

// "1536", "64KiB", "2GiB", "500MB" → bytes. Error names what is wrong with the text.
StatusOr<uint64_t> ParseBytes(std::string_view text);
// 1610612736 → "1.5 GiB"
std::string FormatBytes(uint64_t bytes);

// CLI11 validator for byte sizes; turns the text into a number of bytes.
CLI::Validator BytesFlag();

// A numeric flag that several processes have: one name, one meaning, one range. (The launcher
// checks what it hands on, so that no process refuses it later.)
struct SharedFlag {
  const char* name;
  const char* help;
  uint32_t min, max;
};
inline constexpr SharedFlag kPageSizeFlag = {"--page-size", "Tokens a KV page", 1, 256};
inline constexpr SharedFlag kChunkedPrefillSizeFlag = {
    "--chunked-prefill-size", "Most prompt tokens that one step takes", 1, 65536};
inline constexpr SharedFlag kMaxRunningRequestsFlag = {
    "--max-running-requests", "Most requests that run at once in a replica", 1, 4096};
inline constexpr SharedFlag kMaxQueuedRequestsFlag = {
    "--max-queued-requests", "Most requests that wait in a replica; beyond it clients get 429", 1,
    1 << 20};
inline constexpr SharedFlag kMaxPrefillTokensFlag = {
    "--max-prefill-tokens",
    "Prompt tokens of the requests that one step admits; one request it always may", 1, 1 << 24};
inline constexpr SharedFlag kDecodeLogIntervalFlag = {
    "--decode-log-interval",
    "Steps with decodes from one line about them in the log to the next; 0: no lines", 0, 1 << 30};
inline constexpr SharedFlag kMaxStepMsFlag = {
    "--max-step-ms",
    "Milliseconds that a step may take when it computes a piece of a prompt beside tokens of "
    "others. 0: 33, or twice what the others take; a prompt longer than --chunked-prefill-size "
    "alone 15, or 1.35 times; no limit where more than twice as many wait for their first token as "
    "for their next, or several do and one for 1.5 s; 3600000: no limit",
    0, 3'600'000};
inline constexpr SharedFlag kSpeculativeNumDraftTokensFlag = {
    "--speculative-num-draft-tokens",
    "Tokens that a request drafts for a step from its own text, where it repeats itself and few "
    "run, "
    "at most; answers are the same, sooner. 0: none",
    0, 16};
inline constexpr SharedFlag kScheduleMaxOvertakesFlag = {
    "--schedule-max-overtakes",
    "A request that waits while so many others are admitted goes first, under lpm, dfs-weight, "
    "lof and random; 0: never",
    0, 1u << 30};
inline constexpr SharedFlag kPriorityPreemptionFlag = {
    "--priority-scheduling-preemption-threshold",
    "A waiting request of a priority that is higher by more than this takes the slot of one that "
    "runs, under --schedule-policy priority; 200: never",
    0, 200};
inline constexpr SharedFlag kDrainGraceMsFlag = {
    "--drain-grace-ms", "Milliseconds that running requests get after SIGTERM", 0, 86'400'000};
inline constexpr SharedFlag kThreadsFlag = {"--threads",
                                            "Compute threads of each worker; 0: the cores that the "
                                            "replicas may use, divided by all workers. "
                                            "Never more than those cores",
                                            0, 1024};
inline constexpr SharedFlag kSseKeepaliveFlag = {
    "--sse-keepalive",
    "Seconds without a byte of a stream after which a comment is sent, so that no proxy takes it "
    "for dead; it also sends the status line, so a failure after it is an event. 0: none",
    0, 86'400};
inline constexpr SharedFlag kUiRequestsFlag = {
    "--ui-requests", "Finished requests that the page /ui shows, the last ones; 0: none", 0, 1000};
inline constexpr SharedFlag kLogSlowMsFlag = {
    "--log-slow-ms",
    "A request whose first token takes longer than this, or whose further ones take a tenth of it "
    "each, is logged with its stages, ten a second at most; 0: none",
    0, 86'400'000};
CLI::Option* AddFlag(CLI::App* app, const SharedFlag& flag, uint32_t* value);

struct SharedChoice {
  const char* name;
  const char* help;
  std::span<const char* const> choices;
};
inline constexpr std::array kDevices = {"cpu", "cuda"};
inline constexpr SharedChoice kDeviceFlag = {
    "--device",
    "What workers compute on. cuda: an NVIDIA GPU for each of them, in a build that has it",
    kDevices};
inline constexpr std::array kDtypes = {"auto", "int8", "float32", "bfloat16", "float16"};
inline constexpr std::array kCpuKvCacheDtypes = {"auto", "bfloat16", "float32", "int8"};
inline constexpr std::array kKvCacheDtypes = {"auto", "bfloat16", "float32", "int8", "float16"};
inline constexpr std::array kSchedulePolicies = {"fcfs",   "lpm",      "dfs-weight", "lof",
                                                 "random", "priority", "vtc"};
inline constexpr SharedChoice kDtypeFlag = {
    "--dtype",
    "Arithmetic of the matrices. int8: quantised weights stay as small as in the file and are "
    "multiplied as integers, those of a model without any become Q8_0; float32: they become "
    "floats, the exact but slow reference; auto: int8 if the file is quantised. On a GPU: float32, "
    "bfloat16 (auto) or float16",
    kDtypes};
inline constexpr SharedChoice kKvCacheDtypeFlag = {
    "--kv-cache-dtype",
    "Element of the KV cache. bfloat16: twice the tokens of float32 in the same memory; int8, with "
    "a "
    "scale for each token and head: nearly four times, at a small loss; auto: bfloat16 with "
    "--dtype "
    "int8, float32 with float32. On a GPU: float32, bfloat16 or float16; auto: as --dtype",
    kKvCacheDtypes};
inline constexpr std::array kEvictionPolicies = {"lru", "lfu"};
inline constexpr SharedChoice kEvictionPolicyFlag = {
    "--eviction-policy",
    "Which cached prefix makes room: the least recently or the least frequently used",
    kEvictionPolicies};
inline constexpr SharedChoice kSchedulePolicyFlag = {
    "--schedule-policy",
    "Which waiting request is next. fcfs: first come first served; lpm: longest cached prefix; "
    "dfs-weight: those that share the most with others; lof: longest output; random: drawn; "
    "priority: "
    "the highest, which also preempts who runs; vtc: the tenant that was served least",
    kSchedulePolicies};
inline constexpr std::array kToolCallParsers = {
    "auto", "hermes", "llama3_json", "qwen3_coder", "mistral", "granite", "phi4_mini_json", "none"};
inline constexpr SharedChoice kToolCallParserFlag = {
    "--tool-call-parser",
    "How models write tool calls. hermes: JSON between <tool_call> and </tool_call>; llama3_json: "
    "a JSON object and nothing else; qwen3_coder: <function=f> with a <parameter=a> for each "
    "argument; mistral: [TOOL_CALLS] and a JSON list, or f[ARGS] and JSON; granite: <|tool_call|> "
    "and a JSON list; phi4_mini_json: the same, or functools and a list; auto: as the model's chat "
    "template says; none: their calls stay text",
    kToolCallParsers};
inline constexpr std::array kReasoningParsers = {"auto", "think", "none"};
inline constexpr SharedChoice kReasoningParserFlag = {
    "--reasoning-parser",
    "How models mark what they think before they answer. think: between <think> and </think>; "
    "auto: the same, if their chat template has these tags; none: it stays text",
    kReasoningParsers};
inline constexpr std::array kSamplingDefaults = {"model", "openai"};
inline constexpr SharedChoice kSamplingDefaultsFlag = {
    "--sampling-defaults",
    "What a request has of temperature, top_p, top_k, min_p and repetition_penalty that it does "
    "not say. model: what its makers recommend (generation_config.json, or general.sampling of a "
    "GGUF file), where they do; openai: temperature 1 and nothing else, whatever the model",
    kSamplingDefaults};
inline constexpr std::array kPolicies = {"round_robin",   "shortest_queue",  "power_of_two",
                                         "least_latency", "consistent_hash", "prefix_aware"};
inline constexpr SharedChoice kPolicyFlag = {
    "--policy",
    "Which replica takes a request. round_robin: the next one, for equal requests; shortest_queue: "
    "the fewest tokens, for unequal ones; power_of_two: the shorter queue of two that are drawn, "
    "for several routers over the same replicas; least_latency: the lowest recent time to a first "
    "token, for unequal machines; consistent_hash: a session stays with one replica, unless that "
    "has a quarter more requests than the others; prefix_aware: where most of the prompt is "
    "cached, unless too much waits there, for prompts with common beginnings and conversations",
    kPolicies};
inline constexpr std::array kOnOff = {"on", "off"};
inline constexpr SharedChoice kUiFlag = {
    "--ui", "The page /ui of the HTTP port: a chat, and the fleet as it is now", kOnOff};
CLI::Option* AddFlag(CLI::App* app, const SharedChoice& flag, std::string* value);

// A text that several processes take as it is.
struct SharedText {
  const char* name;
  const char* help;
};
inline constexpr SharedText kPackCacheDirFlag = {
    "--pack-cache-dir",
    "Where packed weights are kept, so that the next start need not pack them: a folder; auto: "
    "beside the model or, if that can't be written, in ~/.cache/flotilla, and only from 1 GiB "
    "a worker on; off. With a GPU also which algorithms multiply fastest"};
inline constexpr SharedText kChatTemplateFlag = {
    "--chat-template",
    "File with a chat template (Jinja) to be used instead of the model's own. None: the model's"};
inline constexpr SharedText kDefaultChatTemplateKwargsFlag = {
    "--default-chat-template-kwargs",
    "Variables for the chat template of every request that does not set them itself, as a JSON "
    "object, such as {\"enable_thinking\": false}"};
inline constexpr SharedText kApiKeysFileFlag = {
    "--api-keys-file",
    "File with a line a key: a tenant, the key's SHA-256, limits (docs/api_keys.md). Read again "
    "when "
    "it changes. None: everybody may call"};
inline constexpr SharedText kOtlpTracesEndpointFlag = {
    "--otlp-traces-endpoint",
    "Where spans of requests go, OTLP over HTTP as JSON, such as http://collector:4318/v1/traces "
    "(docs/observability.md). None: there are none"};
CLI::Option* AddFlag(CLI::App* app, const SharedText& flag, std::string* value);

// Share of the requests without a traceparent that are traced.
CLI::Option* AddTraceSampleRatioFlag(CLI::App* app, double* value);

// Texts; the flag may be given several times.
struct SharedTexts {
  const char* name;
  const char* help;
};
inline constexpr SharedTexts kCorsAllowOriginFlag = {
    "--cors-allow-origin",
    "Web pages of this origin, e.g. https://chat.example.com, may use the HTTP API; '*': of any. "
    "Repeatable. None: no pages but the API's own"};
CLI::Option* AddFlag(CLI::App* app, const SharedTexts& flag, std::vector<std::string>* values);

// Numbers, with commas or blanks between them.
struct SharedList {
  const char* name;
  const char* help;
  uint32_t min, max;
};
inline constexpr SharedList kTokenPaddingsFlag = {
    "--precompile-token-paddings",
    "Tokens of the steps with prompts that a worker prepares itself for, rising; the largest step "
    "is always one. None: powers of two from 16 on. A GPU's graphs have --cuda-graph-sizes",
    1, 1 << 20};
inline constexpr SharedList kBsPaddingsFlag = {"--precompile-bs-paddings",
                                               "Sequences of the decode steps that a worker "
                                               "prepares itself for. None: powers of two. A GPU's "
                                               "graphs have --cuda-graph-sizes",
                                               1, 1 << 20};
CLI::Option* AddFlag(CLI::App* app, const SharedList& flag, std::vector<uint32_t>* values);

// A switch.
struct SharedSwitch {
  const char* name;
  const char* help;
};
inline constexpr SharedSwitch kDisablePrecompileFlag = {
    "--disable-precompile",
    "A worker prepares itself for a size of steps when the first one comes. On a GPU it captures "
    "no graphs"};
CLI::Option* AddFlag(CLI::App* app, const SharedSwitch& flag, bool* value);

// With --device cuda.
struct GpuFlags {
  double gpu_memory_utilization = 0.9;  // share of the device's memory
  std::string gpu_weights = "auto";
  bool disable_batch_invariance = false;
  bool disable_custom_all_reduce = false;
  std::string graph_mode = "auto";
  std::vector<uint32_t> cuda_graph_sizes;
  uint32_t cuda_graph_max_size = 512;
};
// --gpu-memory-utilization, --gpu-weights, --graph-mode and its sizes, --disable-batch-invariance,
// --disable-custom-all-reduce
void AddGpuFlags(CLI::App* app, GpuFlags* flags);

// --log-level, --log-format
void AddLogFlags(CLI::App* app, LogOptions* options);

// Parses; prints help or the error (with the way out) and exits the process where that is due:
// 0 after --help / --version, 2 for a wrong command line.
void ParseOrExit(CLI::App* app, int argc, char** argv);

}  // namespace flotilla
