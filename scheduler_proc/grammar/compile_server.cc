#include "scheduler_proc/grammar/compile_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "common/base/write_all.h"
#include "scheduler_proc/grammar/compile_frames.h"
#include "scheduler_proc/grammar/sandbox_io.h"

namespace flotilla {
namespace {

constexpr size_t kMaxRequestBytes = 16 << 20;
constexpr uint64_t kMsPerSecond = 1000;

StatusOr<std::unique_ptr<XGrammarVocabulary>> ReadVocabulary(int memfd) {
  struct stat info = {};
  if (fstat(memfd, &info) != 0) return absl::InvalidArgumentError("vocabulary: no file");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  if (pread(memfd, bytes.data(), bytes.size(), 0) != info.st_size)
    return absl::InvalidArgumentError("vocabulary: can't be read");
  ASSIGN_OR_RETURN(const VocabularyTokens tokens, ParseVocabulary(bytes));
  return std::make_unique<XGrammarVocabulary>(tokens);
}

uint64_t AddressSpaceBytes() {
  unsigned long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
  std::fclose(file);
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void Limit(__rlimit_resource_t resource, uint64_t value) {
  const rlimit limit = {value, value};
  setrlimit(resource, &limit);
}

void LowerLimits(const CompileRequest& request) {
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_CPU, request.time_ms / kMsPerSecond + 1);
  const uint64_t now = AddressSpaceBytes();
  if (request.memory_bytes != 0 && now != 0) Limit(RLIMIT_AS, now + request.memory_bytes);
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(request.time_ms / kMsPerSecond);
  timer.it_value.tv_usec = static_cast<suseconds_t>(request.time_ms % kMsPerSecond * kMsPerSecond);
  setitimer(ITIMER_REAL, &timer, nullptr);
}

// In a process of its own.
void CompileOne(int socket, const XGrammarVocabulary& vocabulary) {
  const StatusOr<std::string> frame = ReadToEnd(socket, kMaxRequestBytes, INT64_MAX);
  if (!frame.ok()) return;
  const StatusOr<CompileRequest> request = ParseCompileRequest(*frame);
  if (!request.ok()) return;
  LowerLimits(*request);
  if (!WriteAll(socket, std::string(1, kCompileBegins))) return;
  CompileReply reply;
  StatusOr<std::string> compiled = CompileToJson(request->spec, vocabulary);
  if (!compiled.ok()) {
    reply.status = compiled.status();
  } else if (compiled->size() > request->compiled_bytes) {
    reply.status = absl::InvalidArgumentError(StrCat("too large: compiled it takes ",
                                                     compiled->size(), " bytes; at most ",
                                                     request->compiled_bytes, " are allowed"));
  } else {
    reply.compiled = *std::move(compiled);
  }
  WriteAll(socket, BuildCompileReply(reply));
}

}  // namespace

int ServeCompiles(int control_fd) {
  signal(SIGCHLD, SIG_IGN);  // children are reaped by the kernel
  signal(SIGALRM, SIG_DFL);
  std::unique_ptr<XGrammarVocabulary> vocabulary;
  while (std::optional<MessageWithFd> message = ReceiveWithFd(control_fd)) {
    if (message->kind == SandboxMessage::kVocabulary) {
      auto read = ReadVocabulary(message->fd.get());
      if (!read.ok()) return 1;
      vocabulary = *std::move(read);
      continue;
    }
    if (vocabulary == nullptr) return 1;
    const pid_t server = getpid();
    const pid_t child = fork();
    if (child < 0) {
      CompileReply reply;
      reply.status = absl::UnavailableError(StrCat("no process for it: ", std::strerror(errno)));
      WriteAll(message->fd.get(), BuildCompileReply(reply));
    }
    if (child != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != server) _exit(1);  // it ended before that
    close(control_fd);
    CompileOne(message->fd.get(), *vocabulary);
    _exit(0);
  }
  return 0;
}

}  // namespace flotilla
