#include "tests/deploy/launcher_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/base/clock.h"
#include "common/http/http_client.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

// Without it no test of the program says anything.
std::string RequiredEnv(const char* name, const char* way_out) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    std::fprintf(stderr, "%s is not set; %s\n", name, way_out);
    std::exit(1);
  }
  return value;
}

}  // namespace

bool WaitUntil(const std::function<bool()>& condition, double seconds) {
  const int64_t deadline = RealClock::Now() + static_cast<int64_t>(seconds * kNsPerSecond);
  while (!condition()) {
    if (RealClock::Now() > deadline) return condition();
    poll(nullptr, 0, 5);
  }
  return true;
}

LauncherTest::LauncherTest() {
  dir_ = fs::temp_directory_path() / "launcher-test-XXXXXX";
  EXPECT_NE(mkdtemp(dir_.data()), nullptr);
  fs::create_directory(dir_ + "/bin");
  fs::create_directory(dir_ + "/run");
  fs::permissions(dir_ + "/run", fs::perms::owner_all);
  const std::string fake =
      RequiredEnv("FLOTILLA_BIN_DIR", "ctest sets it") + "/../tests/fake_process";
  for (const char* role : {"scheduler", "worker", "detokenizer", "router"})
    fs::create_symlink(fs::absolute(fake), dir_ + "/bin/flotilla-" + role);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come to us, and are seen to end
}

LauncherTest::~LauncherTest() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  while (waitpid(-1, nullptr, 0) > 0) continue;
  if (HasFailure()) std::fprintf(stderr, "--- the launcher's log\n%s---\n", Stderr().c_str());
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

void LauncherTest::Start(const std::vector<std::string>& flags, const std::string& command) {
  if (model_.empty())
    model_ = RequiredEnv("FLOTILLA_TEST_MODEL", "./flotilla test fetches the model and sets it");
  std::vector<std::string> args = {RequiredEnv("FLOTILLA_BIN_DIR", "ctest sets it") + "/flotilla",
                                   command,
                                   "--bin-dir",
                                   dir_ + "/bin",
                                   "--model",
                                   model_,
                                   "--metrics-port",
                                   "0",
                                   "--grpc-port",
                                   "0"};
  if (command == "serve" && std::find(flags.begin(), flags.end(), "--port") == flags.end())
    args.insert(args.end(), {"--port", "0"});
  args.insert(args.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  setenv("FLOTILLA_FAKE_DIR", dir_.c_str(), 1);
  setenv("XDG_RUNTIME_DIR", (dir_ + "/run").c_str(), 1);
  setenv("XDG_STATE_HOME", (dir_ + "/state").c_str(), 1);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  stdout_.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  const UniqueFd log(
      open((dir_ + "/stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  pid_ = fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    dup2(write_end.get(), STDOUT_FILENO);
    dup2(stderr_.valid() ? stderr_.get() : log.get(), STDERR_FILENO);
    for (const int ignored : ignored_signals_) signal(ignored, SIG_IGN);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

std::string LauncherTest::ReadyLine() {
  std::array<char, 1024> buffer;
  while (stdout_text_.find('\n') == std::string::npos) {
    pollfd entry{stdout_.get(), POLLIN, 0};
    if (poll(&entry, 1, 30'000) <= 0) return {};
    const ssize_t n = read(stdout_.get(), buffer.data(), buffer.size());
    if (n <= 0) return {};
    stdout_text_.append(buffer.data(), static_cast<size_t>(n));
  }
  return stdout_text_.substr(0, stdout_text_.find('\n'));
}

int LauncherTest::PortOf(const std::string& ready_line, const std::string& key) {
  const size_t at = ready_line.find(" " + key + "=");
  if (at == std::string::npos) return 0;
  const std::string value = ready_line.substr(at + 1, ready_line.find(' ', at + 1) - at - 1);
  return std::atoi(value.substr(value.rfind(':') + 1).c_str());
}

void LauncherTest::Kill(int signal) const { kill(pid_, signal); }

int LauncherTest::Wait() {
  int status = 0;
  if (!WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, 30)) {
    ADD_FAILURE() << "the launcher does not end";
    return -1;
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void LauncherTest::Misbehave(const std::string& process, const std::string& how) const {
  std::ofstream(dir_ + "/" + process) << how;
}

void LauncherTest::Behave(const std::string& process) const { fs::remove(dir_ + "/" + process); }

std::vector<std::pair<std::string, std::string>> LauncherTest::Events() const {
  std::vector<std::pair<std::string, std::string>> events;
  std::ifstream file(dir_ + "/events");
  std::string what, process, pid;
  while (file >> what >> process >> pid) events.emplace_back(what, process);
  return events;
}

std::vector<pid_t> LauncherTest::Pids(const std::string& name) const {
  std::vector<pid_t> pids;
  std::ifstream file(dir_ + "/events");
  std::string what, process;
  pid_t pid = 0;
  while (file >> what >> process >> pid) {
    if (what == "start" && process == name) pids.push_back(pid);
  }
  return pids;
}

size_t LauncherTest::Count(const std::string& what, const std::string& process) const {
  size_t count = 0;
  for (const auto& event : Events()) count += event == std::pair{what, process};
  return count;
}

std::string LauncherTest::Stderr() const {
  std::ostringstream text;
  text << std::ifstream(dir_ + "/stderr").rdbuf();
  return text.str();
}

std::vector<std::string> LauncherTest::RuntimeDirs() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir_ + "/run"))
    names.push_back(entry.path().filename().string());
  return names;
}

std::string HttpGet(int port, const std::string& path) {
  std::string body;
  const auto status = SendHttp({"127.0.0.1", static_cast<uint16_t>(port), nullptr},
                               {"GET", path, ""}, [&](unsigned, std::string_view piece) {
                                 body.append(piece);
                                 return true;
                               });
  return status.ok() ? body : std::string();
}

}  // namespace flotilla
