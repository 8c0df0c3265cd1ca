#include "worker_proc/bench/quality.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/base/cpus.h"
#include "common/base/flags.h"
#include "common/text/model_text.h"
#include "worker_proc/cpu/thread_pool.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kChunk = 64;  // positions at once: 64 MiB of logits for a vocabulary of 262,144
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

StatusOr<std::string> ReadText(const std::string& path) {
  if (path.empty()) return std::string(kQualityText);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error) ||
      std::filesystem::file_size(path, error) > kMaxTextBytes || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(
        StrCat("--text: ", path, " is no file that can be read, is empty, or is above 1 GiB"));
  }
  return text.str();
}

StatusOr<std::vector<Window>> TokensOf(const QualityOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(options.text));
  ASSIGN_OR_RETURN(const ModelText model, OpenModelText(options.model, nullptr));
  const Tokenizer& tokenizer = *model.tokenizer;
  ASSIGN_OR_RETURN(const std::vector<TokenId> empty, tokenizer.Encode(""));
  std::vector<TokenId> prefix;  // some models end every text with an eos: not here
  if (!empty.empty() && empty[0] == tokenizer.bos_id()) prefix.push_back(empty[0]);
  StatusOr<std::vector<TokenId>> tokens =
      tokenizer.Encode(text, {.parse_special = false, .add_special = false});
  if (!tokens.ok()) {
    return absl::InvalidArgumentError(StrCat("--text: ", tokens.status().message()));
  }
  if (options.max_tokens > 0 && tokens->size() > options.max_tokens) {
    tokens->resize(options.max_tokens);
  }
  if (tokens->size() < 2) return absl::InvalidArgumentError("--text has fewer than two tokens");
  return MakeWindows(*tokens, prefix, options.context_length);
}

Status CheckOptions(const QualityOptions& options, const Checkpoint& checkpoint) {
  const uint32_t most = checkpoint.config().max_position_embeddings;
  if (options.context_length > most) {
    return absl::InvalidArgumentError(
        StrCat("--context-length ", options.context_length, " is more than the model's ", most));
  }
  if (options.llama_logits.empty()) return OkStatus();
  if (!options.model.ends_with(".gguf")) {
    return absl::InvalidArgumentError("--llama-logits reads .gguf files only, --model is none");
  }
  RETURN_IF_ERROR(CheckLlamaProgram(options.llama_logits));
  if (options.context_length > kLlamaMaxWindow) {
    return absl::InvalidArgumentError(StrCat("--context-length ", options.context_length,
                                             " is more than --llama-logits takes, ",
                                             kLlamaMaxWindow));
  }
  return OkStatus();
}

class QualityRun {
 public:
  QualityRun(const QualityOptions& options, const Checkpoint* checkpoint,
             std::vector<Window> windows, const QualityProgress& progress)
      : options_(options),
        checkpoint_(checkpoint),
        windows_(std::move(windows)),
        progress_(progress),
        pool_({.threads = std::max(1u, options.threads == 0 ? AllowedCores() : options.threads)}) {
    report_.model = std::filesystem::path(options.model).filename();
    report_.text = options.text.empty() ? "own" : options.text;
    report_.windows = windows_.size();
    for (const Window& window : windows_) report_.tokens += window.size();
  }

  StatusOr<QualityReport> Run() {
    ASSIGN_OR_RETURN(reference_, Own("float32", "float32"));
    RETURN_IF_ERROR(Compare({"float32", "float32", {}}, nullptr));
    for (const std::string activations : {"float32", "int8"}) {
      for (const std::string kv : kCpuKvCacheDtypes) {
        if (kv == "auto" || (activations == "float32" && kv == "float32")) continue;
        const StatusOr<std::unique_ptr<LogitsSource>> source = Own(activations, kv);
        if (absl::IsInvalidArgument(source.status())) {
          report_.notes.emplace_back(source.status().message());
          break;  // of these activations
        }
        RETURN_IF_ERROR(source.status());
        RETURN_IF_ERROR(Compare({activations, kv, {}}, source->get()));
      }
    }
    if (!options_.llama_logits.empty()) {
      ASSIGN_OR_RETURN(const auto source,
                       MakeLlamaSource(options_.llama_logits, options_.model, windows_));
      RETURN_IF_ERROR(Compare({"llama.cpp", "float16", {}}, source.get()));
    }
    return std::move(report_);
  }

 private:
  StatusOr<std::unique_ptr<LogitsSource>> Own(const std::string& dtype, const std::string& kv) {
    CpuFlags flags;
    flags.isa = options_.isa;
    flags.dtype = dtype;
    flags.kv_cache_dtype = kv;
    flags.threads = pool_.threads();
    ASSIGN_OR_RETURN(const CpuBackendOptions cpu,
                     ResolveCpuOptions(flags, *checkpoint_, AllowedCores()));
    size_t longest = 0;
    for (const Window& window : windows_) longest = std::max(longest, window.size());
    return MakeOwnSource({checkpoint_, cpu, options_.isa, kChunk, static_cast<uint32_t>(longest)});
  }

  // source: null for the reference itself.
  Status Compare(QualityRow row, LogitsSource* source) {
    uint64_t done = 0;
    for (const Window& window : windows_) {
      const auto size = static_cast<uint32_t>(window.size());
      for (uint32_t begin = 0; begin < size; begin += kChunk) {
        RETURN_IF_ERROR(progress_(row, done, report_.tokens));
        const Chunk chunk{&window, begin, std::min(kChunk, size - begin)};
        RETURN_IF_ERROR(CompareChunk(chunk, source, &row));
        done += chunk.count;
      }
    }
    RETURN_IF_ERROR(progress_(row, done, report_.tokens));
    report_.rows.push_back(std::move(row));
    return OkStatus();
  }

  Status CompareChunk(const Chunk& chunk, LogitsSource* source, QualityRow* row) {
    const std::vector<float>& logits = source == nullptr ? reference_logits_ : logits_;
    RETURN_IF_ERROR(reference_->Read(chunk, &reference_logits_));
    if (source != nullptr) RETURN_IF_ERROR(source->Read(chunk, &logits_));
    if (logits.size() != reference_logits_.size()) {
      return absl::InternalError(StrCat(row->activations, " has another vocabulary"));
    }
    std::vector<StatusOr<PositionScore>> scores(chunk.count, PositionScore());
    pool_.ParallelFor(chunk.count, 1, [&](uint32_t begin, uint32_t end, uint32_t) {
      for (uint32_t i = begin; i < end; ++i) {
        const size_t vocab = logits.size() / chunk.count;
        const size_t next = size_t{chunk.begin} + i + 1;
        scores[i] =
            ScorePosition({&reference_logits_[i * vocab], vocab}, {&logits[i * vocab], vocab},
                          next < chunk.window->size() ? (*chunk.window)[next] : -1);
      }
    });
    for (const StatusOr<PositionScore>& score : scores) {
      RETURN_IF_ERROR(score.status());
      row->score.Add(*score);
    }
    return OkStatus();
  }

  const QualityOptions& options_;
  const Checkpoint* const checkpoint_;
  const std::vector<Window> windows_;
  const QualityProgress& progress_;
  cpu::ThreadPool pool_;
  QualityReport report_;
  std::unique_ptr<LogitsSource> reference_;
  std::vector<float> reference_logits_;
  std::vector<float> logits_;
};

}  // namespace

std::vector<Window> MakeWindows(std::span<const int32_t> tokens, std::span<const int32_t> prefix,
                                uint32_t length) {
  std::vector<Window> windows;
  while (!tokens.empty()) {
    Window& window = windows.emplace_back(prefix.begin(), prefix.end());
    const size_t count = std::min(tokens.size(), length - prefix.size());
    window.insert(window.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
    tokens = tokens.subspan(count);
  }
  return windows;
}

StatusOr<QualityReport> RunQuality(const QualityOptions& options, const QualityProgress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options.model));
  RETURN_IF_ERROR(CheckOptions(options, *checkpoint));
  ASSIGN_OR_RETURN(std::vector<Window> windows, TokensOf(options));
  return QualityRun(options, checkpoint.get(), std::move(windows), progress).Run();
}

}  // namespace flotilla::bench
