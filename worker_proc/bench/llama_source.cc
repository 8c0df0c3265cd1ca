// Logits of llama.cpp: tests/bench/llama_logits.cc runs beside us and writes records into a pipe.
// It waits where the pipe is full, so that neither side is ever far ahead.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/unique_fd.h"
#include "worker_proc/bench/logits_source.h"

namespace flotilla::bench {
namespace {

constexpr size_t kMaxSaid = 300;  // of what a program that failed has said, the end

struct RecordHeader {
  uint32_t slot = 0;
  uint32_t position = 0;
  uint32_t vocab = 0;
  uint32_t zero = 0;
};

std::string LinesOf(std::span<const Window> windows) {
  std::string lines;
  for (const Window& window : windows) {
    for (const int32_t id : window) StrAppend(&lines, id, " ");
    lines += "\n";
  }
  return lines;
}

Status SystemError(const char* what) {
  return absl::InternalError(StrCat("--llama-logits: ", what, ": ", std::strerror(errno)));
}

class LlamaSource final : public LogitsSource {
 public:
  ~LlamaSource() override {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  Status Start(const std::string& program, const std::string& model,
               std::span<const Window> windows) {
    const UniqueFd prompts(memfd_create("prompts", MFD_CLOEXEC));
    said_ = UniqueFd(memfd_create("said", MFD_CLOEXEC));
    int ends[2];
    if (!prompts.valid() || !said_.valid() || pipe2(ends, O_CLOEXEC) != 0) {
      return SystemError("no pipe");
    }
    logits_ = UniqueFd(ends[0]);
    const UniqueFd out(ends[1]);
    const std::string lines = LinesOf(windows);
    if (pwrite(prompts.get(), lines.data(), lines.size(), 0) !=
        static_cast<ssize_t>(lines.size())) {
      return SystemError("can't pass the text on");
    }
    pid_ = fork();
    if (pid_ < 0) return SystemError("fork");
    if (pid_ > 0) return OkStatus();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(prompts.get(), STDIN_FILENO);
    dup2(out.get(), STDOUT_FILENO);
    dup2(said_.get(), STDERR_FILENO);
    execl(program.c_str(), program.c_str(), model.c_str(), "/dev/stdout", nullptr);
    _exit(127);
  }

  Status Read(const Chunk& chunk, std::vector<float>* logits) override {
    logits->clear();
    for (uint32_t i = 0; i < chunk.count; ++i) {
      RecordHeader header;
      RETURN_IF_ERROR(ReadAll(&header, sizeof(header)));
      if (header.position != chunk.begin + i || header.zero != 0 || header.vocab == 0 ||
          (vocab_ != 0 && header.vocab != vocab_)) {
        return absl::InternalError(StrCat("--llama-logits: a record of position ", header.position,
                                          " where ", chunk.begin + i, " is next"));
      }
      vocab_ = header.vocab;
      logits->resize(size_t{i + 1} * vocab_);
      RETURN_IF_ERROR(ReadAll(&(*logits)[size_t{i} * vocab_], size_t{vocab_} * sizeof(float)));
    }
    return OkStatus();
  }

 private:
  Status ReadAll(void* to, size_t bytes) {
    auto* next = static_cast<std::byte*>(to);
    while (bytes > 0) {
      const ssize_t got = read(logits_.get(), next, bytes);
      if (got < 0 && errno == EINTR) return absl::CancelledError("a signal");
      if (got < 0) return SystemError("read");
      if (got == 0) return Ended();
      next += got;
      bytes -= static_cast<size_t>(got);
    }
    return OkStatus();
  }

  Status Ended() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    const off_t size = lseek(said_.get(), 0, SEEK_END);
    std::string said(std::min<size_t>(kMaxSaid, static_cast<size_t>(std::max<off_t>(size, 0))), 0);
    const off_t from = size - static_cast<off_t>(said.size());
    if (pread(said_.get(), said.data(), said.size(), from) < 0) said.clear();
    return absl::InternalError(
        StrCat("--llama-logits: the program ended too early (status ", status, "): ", said));
  }

  pid_t pid_ = 0;
  UniqueFd logits_;
  UniqueFd said_;
  uint32_t vocab_ = 0;
};

}  // namespace

Status CheckLlamaProgram(const std::string& program) {
  if (access(program.c_str(), X_OK) == 0) return OkStatus();
  return absl::InvalidArgumentError(
      StrCat("--llama-logits: can't run ", program, "; tests/bench/build_llama.sh builds it"));
}

StatusOr<std::unique_ptr<LogitsSource>> MakeLlamaSource(const std::string& program,
                                                        const std::string& model,
                                                        std::span<const Window> windows) {
  auto source = std::make_unique<LlamaSource>();
  RETURN_IF_ERROR(source->Start(program, model, windows));
  return std::unique_ptr<LogitsSource>(std::move(source));
}

}  // namespace flotilla::bench
