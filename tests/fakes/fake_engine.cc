#include "tests/fakes/fake_engine.h"

#include <grpcpp/create_channel.h>
#include <stdlib.h>

#include <filesystem>
#include <utility>

#include "common/base/check.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

constexpr int64_t kReadyNs = kPatience.count() * kNsPerSecond;

std::string MakeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "fake-engine-XXXXXX").string();
  CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

}  // namespace

FakeEngine::FakeEngine(FakeEngineOptions options)
    : options_(std::move(options)), folder_(MakeFolder()), address_("unix:" + folder_ + "/grpc") {
  replica_ = std::make_unique<FakeReplica>(options_.replica);
  EngineOptions engine = options_.engine;
  engine.tp_size = options_.replica.tp;
  engine.listen.push_back(address_);
  engine.detok_request_address = "ipc://" + folder_ + "/requests";
  engine.detok_reply_address = "ipc://" + folder_ + "/replies";
  engine.core.page_size = options_.replica.page_size;
  engine.core.max_running_requests = options_.replica.max_slots;
  engine.core.context_length = options_.replica.context_length;
  engine.core.vocab_size = options_.replica.model.vocab_size;
  engine.hidden_size = 4;
  engine.core.eos_ids = tokenizer_.eos_ids();
  Engine::Inputs inputs;
  inputs.clock = &clock_;
  inputs.tokenizer = &tokenizer_;
  inputs.chat_format = &*chat_format_;
  inputs.control = replica_->control().operator->();
  inputs.step_ring = replica_->step_ring();
  inputs.result_ring = replica_->result_ring();
  inputs.model_digest = std::string(64, 'd');
  inputs.tokenizer_file = std::string(600'000, 't');
  inputs.registry = &registry_;
  inputs.grammars = options_.grammars;
  inputs.on_fatal = options_.on_fatal;
  auto started = Engine::Start(engine, std::move(inputs));
  CHECK_OK(started.status());
  engine_ = *std::move(started);
  if (options_.start_detokenizer) StartDetokenizer();
  if (options_.replica.start) CHECK(engine_->WaitReady(clock_.NowNs() + kReadyNs));
}

void FakeEngine::StartDetokenizer() {
  detokenizer_ = std::make_unique<FakeDetokenizer>(&tokenizer_, "ipc://" + folder_ + "/requests",
                                                   "ipc://" + folder_ + "/replies");
}

FakeEngine::~FakeEngine() {
  engine_->Stop();
  detokenizer_.reset();
  engine_.reset();
  replica_.reset();
  std::filesystem::remove_all(folder_);
}

std::shared_ptr<grpc::Channel> FakeEngine::Channel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace flotilla
