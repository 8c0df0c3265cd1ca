// flotilla-detokenizer itself: started, talked to, killed and started again, stopped.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/checkpoint/gguf.h"
#include "common/text/tokenizer.h"
#include "shm/futex.h"
#include "shm/replica_control.h"
#include "tests/detokenizer_proc/fake_scheduler.h"
#include "tests/support/process_time.h"

namespace flotilla {
namespace {

using testing::FakeScheduler;

// A child with its standard error on a pipe; killed with the object.
class Child {
 public:
  Child(std::vector<std::string> arguments, int inherited_fd) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      if (inherited_fd >= 0) fcntl(inherited_fd, F_SETFD, 0);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    stderr_ = UniqueFd(ends[0]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // Exit status, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Everything until the process ends.
  std::string Errors() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(stderr_.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
    return text;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd stderr_;
};

class DetokenizerProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* model = std::getenv("FLOTILLA_TEST_MODEL");
    ASSERT_NE(model, nullptr) << "FLOTILLA_TEST_MODEL is not set: run `./flotilla test`, which "
                                 "fetches the default model, or set it to a .gguf file";
    model_ = model;
    StatusOr<ReplicaControl> control = ReplicaControl::Create(1);
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = std::make_unique<ReplicaControl>(std::move(*control));
  }

  std::vector<std::string> Arguments() const {
    return {FLOTILLA_DETOKENIZER,
            "--model=" + model_,
            "--control-fd=" + std::to_string(control_->segment().fd()),
            "--request-socket=" + scheduler_.request_address(),
            "--reply-socket=" + scheduler_.reply_address(),
            "--metrics-socket=" + scheduler_.Path("metrics")};
  }
  std::unique_ptr<Child> Start() {
    slot().incarnation.fetch_add(1);
    ReplicaControl::SetState(&slot(), ProcessState::kStarting);
    return std::make_unique<Child>(Arguments(), control_->segment().fd());
  }
  ProcessSlot& slot() { return (*control_)->detokenizer; }

  void WaitForState(ProcessState state) {
    const int64_t deadline = RealClock::Now() + 30 * kNsPerSecond;
    while (true) {
      const uint32_t bell = (*control_)->launcher_bell.load();
      if (ReplicaControl::State(slot()) == state) return;
      ASSERT_TRUE(FutexWait(&(*control_)->launcher_bell, bell, deadline))
          << "state is " << ProcessStateName(ReplicaControl::State(slot()));
    }
  }
  // How often its threads have gone to sleep.
  static uint64_t Wakeups(pid_t pid) {
    uint64_t sum = 0;
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
      std::ifstream status(task.path() / "status");
      for (std::string line; std::getline(status, line);) {
        constexpr std::string_view kName = "voluntary_ctxt_switches:";
        if (line.starts_with(kName)) sum += std::stoull(line.substr(kName.size()));
      }
    }
    return sum;
  }
  std::string Metrics() const {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    scheduler_.Path("metrics").copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(fd.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, n);
    return text;
  }
  std::vector<TokenId> Encode(std::string_view text) const {
    auto file = MappedFile::Open(model_);
    auto gguf = GgufFile::Parse(file->bytes(), {.metadata_only = true});
    return *(*CreateTokenizer(*gguf))->Encode(text);
  }

  std::string model_;
  std::unique_ptr<ReplicaControl> control_;
  FakeScheduler scheduler_;
};

TEST_F(DetokenizerProcessTest, ServesSurvivesBadFramesAndStops) {
  scheduler_.Bind();
  const auto child = Start();
  EXPECT_EQ(scheduler_.ReceiveHello(), 1u);
  WaitForState(ProcessState::kReady);
  const std::vector<TokenId> ids = Encode("Grüße, 世界 👋🏽!");
  scheduler_.Send({.generation = 1, .events = {FakeScheduler::Open(4)}});
  scheduler_.SendRaw("not a frame");
  std::string text;
  for (uint32_t i = 0; i < ids.size(); ++i) {
    scheduler_.Send(
        {.generation = 1, .events = {FakeScheduler::Tokens(4, i, {ids[i]}, i + 1 == ids.size())}});
    text += scheduler_.ReceiveText().text;
  }
  EXPECT_EQ(text, "Grüße, 世界 👋🏽!");
  const std::string metrics = Metrics();
  EXPECT_THAT(metrics, ::testing::HasSubstr("flotilla_detokenizer_rejected_frames_total 1\n"));
  EXPECT_THAT(metrics, ::testing::HasSubstr("flotilla_detokenizer_tokens_total " +
                                            std::to_string(ids.size()) + "\n"));
  EXPECT_THAT(metrics, ::testing::HasSubstr("flotilla_detokenizer_queue_depth 0\n"));
  EXPECT_THAT(metrics, ::testing::HasSubstr("flotilla_detokenizer_batch_seconds_count "));
  kill(child->pid(), SIGTERM);
  EXPECT_EQ(child->Wait(), 0) << child->Errors();
  EXPECT_EQ(ReplicaControl::State(slot()), ProcessState::kStopping);
}

TEST_F(DetokenizerProcessTest, AfterAKillTheNextOneGoesOnWithinACharacter) {
  scheduler_.Bind();
  const std::string expected = "naïve 👩‍👩‍👧‍👦 stop";
  const std::vector<TokenId> ids = Encode(expected);
  std::string text;
  uint32_t answered = 0;
  auto child = Start();
  EXPECT_EQ(scheduler_.ReceiveHello(), 1u);
  // A new process for each token: the history is sent anew, what was answered is not.
  for (uint32_t i = 0; i < ids.size(); ++i) {
    const std::vector<TokenId> history(ids.begin(), ids.begin() + i + 1);
    auto open = FakeScheduler::Open(1, history, answered);
    open.last = i + 1 == ids.size();
    scheduler_.Send({.generation = i + 1, .events = {open}});
    const DetokText answer = scheduler_.ReceiveText();
    text += answer.text;
    answered = answer.num_tokens;
    if (open.last) break;
    kill(child->pid(), SIGKILL);
    EXPECT_EQ(child->Wait(), -SIGKILL);
    child = Start();
    EXPECT_EQ(scheduler_.ReceiveHello(), i + 2);
  }
  EXPECT_EQ(text, expected);
}

TEST_F(DetokenizerProcessTest, IdleItBeatsAndUsesNoCpu) {
  scheduler_.Bind();
  const auto child = Start();
  scheduler_.ReceiveHello();
  WaitForState(ProcessState::kReady);
  const auto next_beat = [&] {
    const int64_t beat = slot().heartbeat_ns.load();
    while (slot().heartbeat_ns.load() == beat) std::this_thread::yield();
    return slot().heartbeat_ns.load();
  };
  const int64_t start_ns = next_beat();
  const double cpu = CpuSeconds(child->pid());
  const uint64_t wakeups = Wakeups(child->pid());
  constexpr int kBeats = 4;
  int64_t end_ns = start_ns;
  for (int i = 0; i < kBeats; ++i) end_ns = next_beat();
  // By what it does, not by how long this machine takes for it: a loop that polls would wake up
  // hundreds of times a beat, or use a core.
  EXPECT_LE(Wakeups(child->pid()) - wakeups, kBeats * 20u);
  const double share =
      (CpuSeconds(child->pid()) - cpu) / (static_cast<double>(end_ns - start_ns) * 1e-9);
  std::cout << "idle: " << share * 100 << " % of a core\n";
  EXPECT_LT(share, 0.1);
  EXPECT_LT(end_ns - start_ns, kBeats * 10 * kNsPerSecond);
}

TEST_F(DetokenizerProcessTest, AConfigurationThatCannotWorkExitsWith2AndSaysWhy) {
  const auto expect = [&](size_t argument, const std::string& value, const std::string& error) {
    std::vector<std::string> arguments = Arguments();
    arguments[argument] = value;
    Child child(arguments, control_->segment().fd());
    EXPECT_THAT(child.Errors(), ::testing::HasSubstr(error));
    EXPECT_EQ(child.Wait(), 2) << value;
  };
  expect(1, "--model=/does/not/exist.gguf", "/does/not/exist.gguf");
  const std::string junk = scheduler_.Path("junk.gguf");
  std::ofstream(junk) << "GGUX and then nothing of use";
  expect(1, "--model=" + junk, junk);
  expect(2, "--control-fd=0", "--control-fd");
  expect(3, "--request-socket=gopher://x", "can't connect to gopher://x");
  expect(4, "--unknown-flag=1", "reply-socket");
}

}  // namespace
}  // namespace flotilla
