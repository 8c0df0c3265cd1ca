// Where the logits come from that `flotilla bench quality` compares: one of our backends, or
// llama.cpp by the program that tests/bench/build_llama.sh makes.
//
// A text is fed in windows, each a sequence of its own; a window in chunks, in order. Units:
// tokens, positions. Threads: one, and the backend's. Ownership: a source owns what it needs but
// the checkpoint and the windows. Errors: Read: those of the engine; after one the source is of no
// more use.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "worker_proc/cpu/cpu_options.h"

namespace flotilla::bench {

using Window = std::vector<int32_t>;  // token ids

struct Chunk {
  const Window* window = nullptr;
  uint32_t begin = 0;
  uint32_t count = 0;
};

class LogitsSource {
 public:
  virtual ~LogitsSource() = default;
  // *logits becomes [chunk.count, vocabulary]. A window's chunks follow each other from 0 on.
  virtual Status Read(const Chunk& chunk, std::vector<float>* logits) = 0;
};

struct OwnSourceOptions {
  const Checkpoint* checkpoint = nullptr;
  CpuBackendOptions cpu;
  std::string isa;
  uint32_t max_chunk = 0;
  uint32_t max_window = 0;
};
StatusOr<std::unique_ptr<LogitsSource>> MakeOwnSource(const OwnSourceOptions& options);

Status CheckLlamaProgram(const std::string& program);
// program: llama_logits; model: a .gguf file. The windows are all there will be, in this order.
StatusOr<std::unique_ptr<LogitsSource>> MakeLlamaSource(const std::string& program,
                                                        const std::string& model,
                                                        std::span<const Window> windows);
// The longest window it takes.
inline constexpr uint32_t kLlamaMaxWindow = 2048;

}  // namespace flotilla::bench
