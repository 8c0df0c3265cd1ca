// A replica for the router's tests: the real Engine service with a toy model behind it.
//
// The whole answer of a request is made at submission (a hash of prompt and position picks the
// tokens, or a script does), cut into one delta a token, and sent one piece of each request a step.
// Steps run freely or one for each Release. Streams survive a broken connection, as a replica's do.
// The tokenizer is the head of the GGUF that FLOTILLA_TEST_MODEL names.
// Threads: all methods from any thread. Waits are on conditions, with a limit of 20 s.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "flotilla/v1/engine.grpc.pb.h"
#include "tests/fakes/test_model.h"

namespace flotilla {

struct FakeEngineServiceOptions {
  std::string address;  // unix:/path or 127.0.0.1:port
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  std::string replica_id = "fake-0";
  std::string model = "smol";
  std::string fingerprint = "fp-fake";
  uint32_t max_model_len = 2048;
  bool shows_tools = false;  // its chat template does
  bool structural_tags = true;
  uint32_t heartbeat_ms = 2000;
  uint32_t reattach_ms = 2000;
  bool reports_submits = true;
  uint32_t max_running_requests = 0;       // as it says; it takes all
  uint32_t max_queued_requests = 0;        // the same; 0: it does not say
  uint32_t large_result_over = 1'000'000;  // prompt logprobs; more go by FetchLargeResult
};

class FakeEngineService final : public v1::Engine::Service {
 public:
  explicit FakeEngineService(FakeEngineServiceOptions options);
  ~FakeEngineService() override;

  // Steering.
  void Hold();  // no step until Release or RunFreely
  void Release(int steps);
  void RunFreely();
  void BreakStream();                 // the connection dies; requests stay
  void SetReachable(bool reachable);  // false: Connect fails
  void SetSilent(bool silent);        // sends nothing, not even heartbeats
  void LoseRequests();                // forgets all requests, as a restarted process would
  void RefuseNext(int count, int code, const std::string& message);
  void FailLive(int code, const std::string& message);  // all requests end with it, where they are
  void FailOne(int code, const std::string& message);   // one of them does
  void EndLiveByDeadline();                             // the same, but as their deadline does
  void SetScript(std::vector<int32_t> ids);             // tokens of every answer, over and over
  void SetExtraLoad(uint64_t queued_tokens);
  void SetDraining(bool draining);
  void SetRecovering(bool recovering);      // says so; it answers as before unless it is held
  void SetModel(const std::string& model);  // from the next connection
  void SetFingerprint(const std::string& fingerprint);  // the same
  void SetOffersTokenizer(bool offers);                 // the same
  void SetFilesFail(bool fail);  // who fetches one waits until false, and fails
  void SetLargeResultsLost(bool lost);
  void HoldLargeResults(bool hold);  // who fetches one waits
  void HoldSearches(int count);      // the next that ask for a keyed request wait for another call
  void Stop();                       // the process is gone
  void Start();                      // …and back, empty
  int port() const { return port_; }

  // Observing.
  std::vector<v1::Submit> submits() const;
  std::vector<v1::Hello> hellos() const;
  int fetches() const;
  size_t active() const;  // requests with something left to send
  bool WaitForSubmits(size_t count) const;
  bool WaitForAborts(size_t count) const;
  size_t aborts() const;
  bool WaitForConnections(size_t count) const;
  bool WaitFor(const std::function<bool()>& condition) const;  // called with the lock held
  // For WaitFor's conditions.
  int64_t permits() const { return permits_; }
  bool has_live() const { return HasPiece(); }
  bool has_fetches() const { return fetches_ > 0; }
  int searches() const { return searches_; }
  int large_fetches() const { return large_fetches_; }
  int large_answers() const { return large_answers_; }

  // What the toy model answers; an embedding of kHiddenSize numbers.
  static constexpr uint32_t kHiddenSize = 3;
  static std::vector<float> Embedding(std::span<const int32_t> prompt, bool mean);
  // Of every answer whose request asks for it.
  static v1::Timing Timing();
  static constexpr uint64_t kTotalPages = 100;
  std::vector<int32_t> AnswerIds(const v1::GenerateRequest& request) const;

 private:
  const TestModel& files() const;
  struct Live {
    std::vector<v1::Delta> pieces;
    size_t next = 0;
    uint64_t prompt_tokens = 0;
    size_t resumed_tokens = 0;
    bool repeats = false;  // a submit with its key came before
  };
  using Stream = grpc::ServerReaderWriter<v1::EngineFrame, v1::RouterFrame>;

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status FetchModelFile(grpc::ServerContext* context,
                              const v1::FetchModelFileRequest* request,
                              grpc::ServerWriter<v1::FileChunk>* writer) override;
  grpc::Status FetchLargeResult(grpc::ServerContext* context,
                                const v1::FetchLargeResultRequest* request,
                                grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  // Whether a submit with this key has come.
  grpc::Status FindKeyed(grpc::ServerContext* context, const v1::FindKeyedRequest* request,
                         v1::FindKeyedResponse* response) override;

  // A field of the load is another now.
  template <typename T>
  void TellLoad(T* field, T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    *field = value;
    if (stream_ != nullptr) SendStep(/*heartbeat=*/true);
  }
  void StepLoop();
  void SendStep(bool heartbeat);
  bool HasPiece() const;
  bool HasKeyed(const std::string& key) const;
  void OnFrame(const v1::RouterFrame& frame);
  void OnSubmit(const v1::Submit& submit);
  void SendError(uint64_t stream_id, int code, const std::string& message);
  void SendAborted(uint64_t stream_id, const Live& live);
  static size_t ResumedTokens(const v1::Submit& submit);
  std::vector<v1::Delta> MakePieces(const v1::Submit& submit);
  static v1::Delta MakeEmbedding(const v1::Submit& submit);
  void AddPromptLogprobs(const v1::Submit& submit, std::vector<v1::Delta>* pieces);
  v1::TokenLogprobs Logprobs(int32_t id, int count) const;
  v1::EngineFrame MakeWelcome(const v1::Hello& hello);
  v1::Load MakeLoad() const;
  void Rewind(const v1::Reattach& wanted, Live* live);

  const FakeEngineServiceOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<uint64_t, Live> live_;
  std::vector<v1::Submit> submits_;
  std::vector<v1::Hello> hellos_;
  std::set<uint64_t> aborted_;
  std::map<uint64_t, std::vector<v1::TokenLogprobs>> large_;
  std::string model_ = options_.model;
  std::string fingerprint_ = options_.fingerprint;
  std::vector<int32_t> script_;
  Stream* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  uint64_t connection_submits_ = 0;
  uint64_t extra_load_ = 0;
  int fetches_ = 0;
  int refusals_ = 0;
  int refusal_code_ = 0;
  std::string refusal_message_;
  int64_t permits_ = -1;  // < 0: free
  bool reachable_ = true;
  bool silent_ = false;
  bool draining_ = false;
  bool recovering_ = false;
  bool offers_tokenizer_ = true;
  bool files_fail_ = false;
  bool large_lost_ = false;
  bool large_held_ = false;
  int searches_ = 0, held_searches_ = 0, search_holds_ = 0;
  int large_fetches_ = 0, large_answers_ = 0;
  bool stopping_ = false;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread step_thread_;
};

}  // namespace flotilla
