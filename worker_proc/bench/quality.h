// `flotilla bench quality`: what the fast arithmetics cost in precision. A text is read token by
// token by one model in each of them, and the logits of every position are compared with those of
// float32 with a float32 KV cache, which the oracle holds against transformers.
//
// Units: tokens, nats. Threads: one, and the backend's. Errors: InvalidArgument for a bad option;
// Cancelled when `progress` says so; those of the engines.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "boost/json.hpp"
#include "common/base/status.h"
#include "worker_proc/bench/logits_source.h"
#include "worker_proc/bench/quality_score.h"

namespace flotilla::bench {

struct QualityOptions {
  std::string model;  // .gguf file or folder
  std::string text;   // file; empty: our own text
  std::string isa = "auto";
  uint32_t threads = 0;           // 0: the cores
  uint32_t context_length = 512;  // tokens a window
  uint32_t max_tokens = 0;        // of the text; 0: all
  std::string llama_logits;       // program; empty: without llama.cpp
};

struct QualityRow {
  std::string activations;
  std::string kv;
  QualityScore score;
};

struct QualityReport {
  std::string model;
  std::string text;
  uint64_t tokens = 0;
  uint64_t windows = 0;
  std::vector<QualityRow> rows;    // the first is the reference against itself
  std::vector<std::string> notes;  // what was left out, and why
};

// Of tokens of the text in the row's engine; not OK: the run ends with that.
using QualityProgress =
    std::function<Status(const QualityRow& row, uint64_t done, uint64_t tokens)>;

// `tokens` in windows of at most `length`, each with `prefix` (a bos or nothing) before it.
std::vector<Window> MakeWindows(std::span<const int32_t> tokens, std::span<const int32_t> prefix,
                                uint32_t length);

StatusOr<QualityReport> RunQuality(const QualityOptions& options, const QualityProgress& progress);

std::string QualityTable(const QualityReport& report);
boost::json::object QualityJson(const QualityReport& report);

// The text that is read if none is named: prose, code, a table and other languages, of this
// project.
extern const char kQualityText[];

}  // namespace flotilla::bench
