// A whole engine in this process: the real Engine (loop, core, output side, gRPC) over a
// FakeReplica and a FakeDetokenizer, listening on a Unix socket in a temporary folder. For tests of
// the engine and of the router. Threads: tests call from one thread.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>

#include "scheduler_proc/engine.h"
#include "tests/fakes/fake_detokenizer.h"
#include "tests/fakes/fake_replica.h"
#include "tests/fakes/fake_tokenizer.h"

namespace flotilla {

struct FakeEngineOptions {
  FakeReplicaOptions replica;
  EngineOptions engine;  // sockets and model limits are filled in
  bool start_detokenizer = true;
  GrammarCompiler* grammars = nullptr;  // null: no structured output
  std::function<void(const Status&)> on_fatal = {};
};

class FakeEngine {
 public:
  // Ready when it returns, unless the ranks or the detokenizer are not started.
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine();

  const std::string& address() const { return address_; }  // as gRPC spells it
  std::shared_ptr<grpc::Channel> Channel() const;          // a new connection each
  Engine& engine() { return *engine_; }
  FakeReplica& replica() { return *replica_; }
  void StartDetokenizer();  // if options.start_detokenizer was false
  FakeDetokenizer& detokenizer() { return *detokenizer_; }
  const FakeTokenizer& tokenizer() const { return tokenizer_; }
  prometheus::Registry& registry() { return registry_; }

 private:
  const FakeEngineOptions options_;
  RealClock clock_;
  FakeTokenizer tokenizer_;
  const StatusOr<ChatFormat> chat_format_ = ChatFormat::Create(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}", {}, {});
  prometheus::Registry registry_;
  std::string folder_;
  std::string address_;
  std::unique_ptr<FakeReplica> replica_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<FakeDetokenizer> detokenizer_;
};

}  // namespace flotilla
