// The program itself: flags, the READY line, signals, exit codes, idle CPU.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <thread>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "tests/fakes/fake_kube_api.h"
#include "tests/router/router_harness.h"
#include "tests/support/patience.h"
#include "tests/support/process_time.h"

namespace flotilla {
namespace {

using testing::HasSubstr;

// A child with its stdout, its stderr and a notify descriptor (3) on pipes.
class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    int output_pipe[2], error_pipe[2], notify_pipe[2];
    CHECK(pipe2(output_pipe, O_CLOEXEC) == 0 && pipe2(error_pipe, O_CLOEXEC) == 0 &&
          pipe2(notify_pipe, O_CLOEXEC) == 0);
    args.insert(args.begin(), FLOTILLA_ROUTER_BINARY);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(output_pipe[1], 1);
      dup2(error_pipe[1], 2);
      if (notify_pipe[1] == 3)
        fcntl(3, F_SETFD, 0);
      else
        dup2(notify_pipe[1], 3);
      execv(argv[0], argv.data());
      _exit(127);
    }
    output_.reset(output_pipe[0]);
    errors_.reset(error_pipe[0]);
    notify_.reset(notify_pipe[0]);
    close(output_pipe[1]);
    close(error_pipe[1]);
    close(notify_pipe[1]);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  std::string Notified() { return ReadAll(notify_.get(), '\n'); }
  std::string OutputLine() { return ReadAll(output_.get(), '\n'); }
  std::string ErrorLine() { return ReadAll(errors_.get(), '\n'); }
  std::string Errors() { return ReadAll(errors_.get(), '\0'); }
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static std::string ReadAll(int fd, char until) {
    std::string out;
    char c = 0;
    while (true) {
      pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, static_cast<int>(kPatience.count()) * 1000) <= 0 || read(fd, &c, 1) <= 0)
        return out;
      out.push_back(c);
      if (c == until) return out;
    }
  }

  pid_t pid_ = -1;
  UniqueFd output_, errors_, notify_;
};

class MainTest : public testing::Test {
 protected:
  MainTest() {
    char folder[] = "/tmp/flotilla-main-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    folder_ = folder;
    FakeEngineServiceOptions options;
    options.address = StrCat("unix:", folder_, "/0.sock");
    engine_ = std::make_unique<FakeEngineService>(options);
  }
  ~MainTest() override {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::vector<std::string> Args(std::vector<std::string> more = {}, int port = 0, int grpc = 0) {
    std::vector<std::string> args = {"--notify-fd", "3", "--port", std::to_string(port)};
    for (const std::string& arg : {std::string("--grpc-port"), std::to_string(grpc),
                                   std::string("--replica"), StrCat("unix:", folder_, "/0.sock")})
      args.push_back(arg);
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static int PortIn(const std::string& line, const char* name) {
    const size_t at = line.find(name);
    return at == std::string::npos ? 0 : std::atoi(line.c_str() + at + strlen(name));
  }

  std::string folder_;
  std::unique_ptr<FakeEngineService> engine_;
};

TEST_F(MainTest, SaysWhenItIsReadyServesAndStopsOnSigterm) {
  const std::string metrics = StrCat(folder_, "/metrics.sock");
  Process router(Args({"--metrics-socket", metrics}));
  const std::string line = router.Notified();
  ASSERT_TRUE(line.starts_with("READY http=")) << line;
  const auto port = static_cast<uint16_t>(PortIn(line, "http="));
  EXPECT_GT(PortIn(line, "grpc="), 0);
  EXPECT_EQ(Post(port, "/v1/completions", R"({"model":"smol","prompt":"Hi"})").status, 200);
  EXPECT_TRUE(std::filesystem::exists(metrics));
  kill(router.pid(), SIGTERM);
  EXPECT_EQ(router.Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(metrics));
}

TEST_F(MainTest, WithoutALauncherItSaysOnStdoutWhereItServes) {
  std::vector<std::string> args = Args({"--metrics-port", "0"});
  args.erase(args.begin(), args.begin() + 2);  // --notify-fd
  Process router(args);
  const std::string line = router.OutputLine();
  const std::string http = StrCat("http=http://127.0.0.1:", PortIn(line, "http=http://127.0.0.1:"));
  EXPECT_EQ(line, StrCat("ready ", http, " grpc=127.0.0.1:", PortIn(line, "grpc=127.0.0.1:"),
                         " metrics=http://127.0.0.1:", PortIn(line, "metrics=http://127.0.0.1:"),
                         "/metrics\n"));
  const int port = PortIn(line, "http=http://127.0.0.1:");
  EXPECT_EQ(Get(static_cast<uint16_t>(port), "/health/ready").status, 200);
}

TEST_F(MainTest, GivesItsMetricsToPrometheusOnAPortOfItsOwn) {
  engine_->SetReachable(false);
  Process router(Args({"--metrics-port", "0"}));
  std::string line;
  do {
    line = router.ErrorLine();
  } while (!line.empty() && PortIn(line, "port=") == 0);
  const auto port = static_cast<uint16_t>(PortIn(line, "port="));
  ASSERT_GT(port, 0) << "it has not said where its metrics are";
  const HttpAnswer page = Get(port, "/metrics");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("\nflotilla_router_requests_in_flight 0\n"));
  EXPECT_THAT(page.body, HasSubstr("\nflotilla_build_info{process=\"router\","));
  EXPECT_EQ(Get(port, "/health/live").status, 200) << "kubelets that have no certificate ask here";
  EXPECT_EQ(Get(port, "/health/ready").status, 503) << "it has no replica";
  EXPECT_EQ(Get(port, "/v1/models").status, 404);

  Process second(Args({"--metrics-port", std::to_string(port)}));
  EXPECT_THAT(second.Errors(),
              HasSubstr(StrCat("--metrics-port: can't listen on 127.0.0.1:", port)));
  EXPECT_EQ(second.Wait(), 1);
}

TEST_F(MainTest, RunningStreamsFinishAfterSigterm) {
  Process router(Args());
  const auto port = static_cast<uint16_t>(PortIn(router.Notified(), "http="));
  engine_->Hold();
  HttpConnection connection(port);
  connection.Send(PostText("/v1/completions",
                           R"({"model":"smol","prompt":"Hi","max_tokens":9,"stream":true})"));
  ASSERT_TRUE(engine_->WaitForSubmits(1));
  kill(router.pid(), SIGTERM);
  while (Get(port, "/health/ready").status != 503) {
  }
  engine_->RunFreely();
  EXPECT_EQ(Events(connection.Read().body).back(), "[DONE]");
  EXPECT_EQ(router.Wait(), 0);
}

TEST_F(MainTest, TheGraceEnds) {
  Process router(Args({"--drain-grace-ms", "50"}));
  const auto port = static_cast<uint16_t>(PortIn(router.Notified(), "http="));
  engine_->Hold();
  HttpConnection connection(port);
  connection.Send(PostText("/v1/completions", R"({"model":"smol","prompt":"Hi"})"));
  ASSERT_TRUE(engine_->WaitForSubmits(1));
  kill(router.pid(), SIGTERM);
  EXPECT_EQ(router.Wait(), 0);
  EXPECT_EQ(connection.Read().status, 503);
  EXPECT_TRUE(connection.ReadsEof());
}

TEST_F(MainTest, SigtermBeforeAnyReplicaIsThere) {
  engine_->Stop();
  Process router(Args());
  // The first failed attempt is logged, and the signals are blocked before that.
  EXPECT_NE(router.ErrorLine(), "");
  kill(router.pid(), SIGTERM);
  EXPECT_EQ(router.Wait(), 0);
  engine_->Start();
}

TEST_F(MainTest, APortInUseIsOneClearLineAndExitCode1) {
  Process first(Args());
  const std::string line = first.Notified();
  for (const char* flag : {"--port", "--grpc-port"}) {
    const bool http = std::string(flag) == "--port";
    const int port = PortIn(line, http ? "http=" : "grpc=");
    Process second(http ? Args({}, port, 0) : Args({}, 0, port));
    const std::string errors = second.Errors();
    EXPECT_EQ(second.Wait(), 1) << flag;
    EXPECT_TRUE(
        errors.starts_with(StrCat("flotilla-router: ", flag, ": can't listen on 127.0.0.1:", port)))
        << errors;
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
  }
}

TEST_F(MainTest, WrongFlagsAreExitCode2) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{},
                                               {"--replica"},
                                               {"--replica", "x:1", "--policy", "fastest"},
                                               {"--replica", "x:1", "--port", "70000"},
                                               {"--replica", "x:1", "--cors-allow-origin", "foo"},
                                               {"--replica-dns", "engine"},
                                               {"--replica-service", "engine"},
                                               {"--replica-service", "engine:1"},  // no pod
                                               {"--replica", "x:1", "--max-body-bytes", "many"},
                                               {"--replica", "x"},
                                               {"--replica", "x:0"},
                                               {"--replica", "x:1", "--nonsense"}}) {
    Process router(args);
    EXPECT_NE(router.Errors(), "");
    EXPECT_EQ(router.Wait(), 2);
  }
}

TEST_F(MainTest, ChecksFlagsAndTheirFilesAlone) {
  const std::vector<std::string> fine = {"--replica", "x:1", "--check"};
  Process checks(fine);
  EXPECT_EQ(checks.Errors(), "");
  EXPECT_EQ(checks.Wait(), 0);
  for (const auto& [flag, value, error] :
       {std::tuple{"--api-keys-file", "/nope",
                   "flotilla-router: --api-keys-file: can't read /nope"},
        {"--otlp-traces-endpoint", "https://x", "flotilla-router: --otlp-traces-endpoint: "},
        {"--tls-cert-file", "/nope", "flotilla-router: --tls-"}}) {
    std::vector<std::string> args = fine;
    args.insert(args.end(), {flag, value});
    Process router(args);
    EXPECT_THAT(router.Errors(), testing::StartsWith(error));
    EXPECT_EQ(router.Wait(), 2);
  }
}

TEST_F(MainTest, FindsThePodsOfAServiceAndLeavesThoseThatAreBeingDeleted) {
  FakeEngineServiceOptions options;
  options.address = "127.0.0.1:0";
  FakeEngineService first(options);
  options.replica_id = "fake-1";
  FakeEngineService second(options);
  FakeSlice slice = {.ready = {"127.0.0.1"}, .port = first.port()};
  FakeKubeApi api;
  api.Set({slice}, 1);
  Process router({"--notify-fd", "3", "--port", "0", "--grpc-port", "0", "--replica-service",
                  "flotilla/engine:grpc", "--kubernetes-api", api.url()});
  const auto port = static_cast<uint16_t>(PortIn(router.Notified(), "http="));
  constexpr const char* kBody = R"({"model":"smol","prompt":"Hi","max_tokens":2})";
  EXPECT_EQ(Post(port, "/v1/completions", kBody).status, 200);
  EXPECT_EQ(first.submits().size(), 1u);
  const auto ask = [&] { EXPECT_EQ(Post(port, "/v1/completions", kBody).status, 200); };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  ASSERT_EQ(api.WaitForRequests("watch=true", 1).size(), 1u);
  api.Push(
      SliceEventJson("ADDED", {.name = "new", .ready = {"127.0.0.1"}, .port = second.port()}, 2));
  while (second.submits().empty() && std::chrono::steady_clock::now() < deadline) ask();
  EXPECT_FALSE(second.submits().empty());
  // Both serve, one is about to go: it gets nothing more, as soon as the router knows.
  slice.leaving = std::exchange(slice.ready, {});
  api.Push(SliceEventJson("MODIFIED", slice, 3));
  size_t before = 0;
  do {
    before = first.submits().size();
    for (int i = 0; i < 4; ++i) ask();  // in turn
  } while (first.submits().size() != before && std::chrono::steady_clock::now() < deadline);
  for (int i = 0; i < 5; ++i) ask();
  EXPECT_EQ(first.submits().size(), before);
}

TEST_F(MainTest, IdleCostsNothing) {
  Process router(Args());
  const auto port = static_cast<uint16_t>(PortIn(router.Notified(), "http="));
  EXPECT_EQ(Post(port, "/v1/completions", R"({"model":"smol","prompt":"Hi"})").status, 200);
  const double before = CpuSeconds(router.pid());
  std::this_thread::sleep_for(std::chrono::seconds(5));  // what is measured is time
  const double share = (CpuSeconds(router.pid()) - before) / 5;
  RecordProperty("percent_of_a_core", std::to_string(share * 100));
  EXPECT_LE(share, 0.02);  // a thread that polls each millisecond takes more
}

}  // namespace
}  // namespace flotilla
