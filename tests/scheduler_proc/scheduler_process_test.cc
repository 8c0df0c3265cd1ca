// The flotilla-scheduler binary itself: exit codes and messages for a bad start, and one life from
// loading to SIGTERM, with ranks and detokenizer played by this process.
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "common/base/check.h"
#include "common/checkpoint/gguf.h"
#include "tests/fakes/fake_detokenizer.h"
#include "tests/fakes/fake_replica.h"
#include "tests/fakes/gguf_builder.h"
#include "tests/scheduler_proc/engine_client.h"
#include "tests/support/health_client.h"

namespace flotilla {
namespace {

// A child with its standard error on a pipe; killed with the object.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::vector<int>& inherited) {
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      for (int fd : inherited) fcntl(fd, F_SETFD, 0);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    stderr_ = UniqueFd(ends[0]);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Terminate() { kill(pid_, SIGTERM); }
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
    for (ssize_t n; (n = read(stderr_.get(), buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd stderr_;
};

class SchedulerProcess : public ::testing::Test {
 protected:
  SchedulerProcess() {
    folder_ = (std::filesystem::temp_directory_path() / "scheduler-process-XXXXXX").string();
    CHECK(mkdtemp(folder_.data()) != nullptr);
    model_ = folder_ + "/tiny.gguf";
    testing::WriteTinyLlama(model_);
    FakeReplicaOptions options;
    options.model.vocab_size = testing::TinyLlamaVocabSize();
    options.model.eos_id = static_cast<int32_t>(options.model.vocab_size) - 1;
    options.context_length = 512;
    fake_ = options.model;
    replica_ = std::make_unique<FakeReplica>(options);
  }
  ~SchedulerProcess() override { std::filesystem::remove_all(folder_); }

  // The command line, with `change`d values: a flag named there replaces the default's.
  std::vector<std::string> Arguments(
      const std::vector<std::pair<std::string, std::string>>& change) {
    const char* bin = std::getenv("FLOTILLA_BIN_DIR");
    CHECK(bin != nullptr);
    std::vector<std::pair<std::string, std::string>> flags = {
        {"--replica-id", "r0"},
        {"--tp", "1"},
        {"--model", model_},
        {"--listen", Address()},
        {"--control-fd", std::to_string(replica_->control().segment().fd())},
        {"--step-ring-fd", std::to_string(replica_->step_ring()->fd())},
        {"--result-ring-fd", std::to_string(replica_->result_ring()->fd())},
        {"--detokenizer-request-socket", "ipc://" + folder_ + "/q"},
        {"--detokenizer-reply-socket", "ipc://" + folder_ + "/p"},
        {"--metrics-socket", folder_ + "/metrics"},
    };
    for (const auto& changed : change) {
      auto it = std::find_if(flags.begin(), flags.end(),
                             [&](auto& f) { return f.first == changed.first; });
      if (it == flags.end()) it = flags.insert(flags.end(), {changed.first, ""});
      it->second = changed.second;
    }
    std::vector<std::string> arguments = {std::string(bin) + "/flotilla-scheduler"};
    for (const auto& [name, value] : flags) {
      arguments.push_back(name);
      arguments.push_back(value);
    }
    return arguments;
  }
  std::unique_ptr<Child> Start(
      const std::vector<std::pair<std::string, std::string>>& change = {}) {
    return std::make_unique<Child>(
        Arguments(change),
        std::vector<int>{replica_->control().segment().fd(), replica_->step_ring()->fd(),
                         replica_->result_ring()->fd()});
  }
  void ExpectRefused(const std::vector<std::pair<std::string, std::string>>& change,
                     const std::string& message) {
    auto child = Start(change);
    const std::string errors = child->Errors();
    EXPECT_EQ(child->Wait(), 2);
    EXPECT_NE(errors.find(message), std::string::npos) << errors;
  }
  std::string Address() const { return "unix:" + folder_ + "/grpc"; }

  std::string folder_, model_;
  FakeModel fake_;
  std::unique_ptr<FakeReplica> replica_;
};

TEST_F(SchedulerProcess, ABadStartEndsWithTwoAndSaysWhy) {
  ExpectRefused({{"--model", folder_ + "/none.gguf"}}, "--model");
  testing::WriteBytes(folder_ + "/junk.gguf", "not a model at all, but long enough for a header");
  ExpectRefused({{"--model", folder_ + "/junk.gguf"}}, "--model");
  ExpectRefused({{"--context-length", "100000"}}, "--context-length");
  ExpectRefused({{"--tp", "2"}}, "--tp 2");
  ExpectRefused({{"--page-size", "0"}}, "--page-size");
  ExpectRefused({{"--schedule-policy", "lifo"}}, "--schedule-policy");
  ExpectRefused({{"--control-fd", std::to_string(replica_->step_ring()->fd())}}, "control segment");
  ExpectRefused({{"--listen", "unix:/no/such/folder/socket"}}, "listen");
  ExpectRefused({{"--detokenizer-reply-socket", "ipc:///no/such/folder/p"}}, "/no/such/folder/p");
}

TEST_F(SchedulerProcess, ServesAndDrainsOnSigterm) {
  auto child = Start({{"--model-name", "tiny"}});
  const std::string bytes = testing::TinyLlamaBytes();
  const auto gguf = GgufFile::Parse({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                    {.metadata_only = true});
  ASSERT_TRUE(gguf.ok());
  const auto tokenizer = CreateTokenizer(*gguf);
  ASSERT_TRUE(tokenizer.ok());
  FakeDetokenizer detokenizer(tokenizer->get(), "ipc://" + folder_ + "/q",
                              "ipc://" + folder_ + "/p");
  auto channel = grpc::CreateChannel(Address(), grpc::InsecureChannelCredentials());
  ASSERT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
  HealthClient health(channel);
  ASSERT_TRUE(health.WaitFor("", HealthClient::kServing));
  ReplicaControl& control = replica_->control();
  EXPECT_EQ(ReplicaControl::State(control->scheduler), ProcessState::kReady);
  EXPECT_GT(control->scheduler.heartbeat_ns.load(), 0);

  auto engine = v1::Engine::NewStub(channel);
  grpc::ClientContext info_context;
  v1::GetModelInfoResponse info;
  ASSERT_TRUE(engine->GetModelInfo(&info_context, {}, &info).ok());
  EXPECT_EQ(info.model(), "tiny");
  EXPECT_EQ(info.max_model_len(), 512u);
  EXPECT_EQ(info.files(0).bytes(), gguf->header_bytes());

  // One request runs when SIGTERM comes; it is finished, others are refused.
  auto stub = v1::Inference::NewStub(channel);
  v1::GenerateRequest request = TokenRequest({5, 6, 7}, 400);
  request.mutable_stopping()->set_ignore_eos(true);
  grpc::ClientContext context;
  replica_->HoldAfter(8);
  auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  child->Terminate();
  ASSERT_TRUE(health.WaitFor("", HealthClient::kNotServing));
  EXPECT_EQ(ReplicaControl::State(control->scheduler), ProcessState::kStopping);
  EXPECT_EQ(Generate(stub.get(), request).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  replica_->Hold(false);
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.usage().completion_tokens(), 400);
  EXPECT_EQ(child->Wait(), 0);
}

TEST_F(SchedulerProcess, TheGraceEndsEvenWithARequestThatHangs) {
  auto child = Start({{"--drain-grace-ms", "50"}});
  auto channel = grpc::CreateChannel(Address(), grpc::InsecureChannelCredentials());
  ASSERT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
  HealthClient health(channel);
  ASSERT_TRUE(health.WaitFor("", HealthClient::kServing));
  replica_->Hold(true);
  auto stub = v1::Inference::NewStub(channel);
  std::thread client([&] {
    const Generated got = Generate(stub.get(), TokenRequest({5, 6, 7}, 40));
    EXPECT_FALSE(got.status.ok());
  });
  auto engine = v1::Engine::NewStub(channel);
  v1::Load load;
  while (load.running_requests() == 0) {
    grpc::ClientContext context;
    ASSERT_TRUE(engine->GetLoad(&context, {}, &load).ok());
  }
  child->Terminate();
  EXPECT_EQ(child->Wait(), 0);
  client.join();
  replica_->Hold(false);
}

}  // namespace
}  // namespace flotilla
