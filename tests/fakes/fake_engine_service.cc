#include "tests/fakes/fake_engine_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "tests/support/patience.h"

namespace flotilla {
namespace {

constexpr uint32_t kProtocolMax = 2;

}  // namespace

FakeEngineService::FakeEngineService(FakeEngineServiceOptions options)
    : options_(std::move(options)) {
  GetTestModel();
  Start();
}

FakeEngineService::~FakeEngineService() { Stop(); }

void FakeEngineService::Start() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = false;
  live_.clear();
  lock.unlock();
  grpc::ServerBuilder builder;
  const bool again = port_ > 0 && options_.address.ends_with(":0");
  builder.AddListeningPort(again ? StrCat("127.0.0.1:", port_) : options_.address,
                           options_.credentials, &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
  step_thread_ = std::thread([this] { StepLoop(); });
}

void FakeEngineService::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (server_ == nullptr) return;
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.notify_all();
  }
  step_thread_.join();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

// --- Steering ----------------------------------------------------------------------------------

void FakeEngineService::Hold() {
  std::lock_guard<std::mutex> lock(mutex_);
  permits_ = 0;
}

void FakeEngineService::Release(int steps) {
  std::lock_guard<std::mutex> lock(mutex_);
  permits_ = std::max<int64_t>(permits_, 0) + steps;
  changed_.notify_all();
}

void FakeEngineService::RunFreely() {
  std::lock_guard<std::mutex> lock(mutex_);
  permits_ = -1;
  changed_.notify_all();
}

void FakeEngineService::BreakStream() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (context_ != nullptr) context_->TryCancel();
}

void FakeEngineService::SetReachable(bool reachable) {
  std::lock_guard<std::mutex> lock(mutex_);
  reachable_ = reachable;
}

void FakeEngineService::SetSilent(bool silent) {
  std::lock_guard<std::mutex> lock(mutex_);
  silent_ = silent;
  changed_.notify_all();
}

void FakeEngineService::LoseRequests() {
  std::lock_guard<std::mutex> lock(mutex_);
  live_.clear();
}

void FakeEngineService::RefuseNext(int count, int code, const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  refusals_ = count;
  refusal_code_ = code;
  refusal_message_ = message;
}

void FakeEngineService::FailOne(int code, const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto first = live_.begin();
  SendError(first->first, code, message);
  live_.erase(first);
}

void FakeEngineService::FailLive(int code, const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [stream_id, live] : live_) SendError(stream_id, code, message);
  live_.clear();
}

void FakeEngineService::SetScript(std::vector<int32_t> ids) {
  std::lock_guard<std::mutex> lock(mutex_);
  script_ = std::move(ids);
}

void FakeEngineService::SetExtraLoad(uint64_t queued_tokens) {
  TellLoad(&extra_load_, queued_tokens);
}

void FakeEngineService::SetDraining(bool draining) { TellLoad(&draining_, draining); }

void FakeEngineService::SetRecovering(bool recovering) { TellLoad(&recovering_, recovering); }

void FakeEngineService::SetModel(const std::string& model) {
  std::lock_guard<std::mutex> lock(mutex_);
  model_ = model;
}

void FakeEngineService::SetFingerprint(const std::string& fingerprint) {
  std::lock_guard<std::mutex> lock(mutex_);
  fingerprint_ = fingerprint;
}

void FakeEngineService::SetLargeResultsLost(bool lost) {
  std::lock_guard<std::mutex> lock(mutex_);
  large_lost_ = lost;
}

void FakeEngineService::HoldLargeResults(bool hold) {
  std::lock_guard<std::mutex> lock(mutex_);
  large_held_ = hold;
  changed_.notify_all();
}

void FakeEngineService::HoldSearches(int count) {
  std::lock_guard<std::mutex> lock(mutex_);
  held_searches_ = count;
  ++search_holds_;
  changed_.notify_all();
}

// --- Observing ---------------------------------------------------------------------------------

std::vector<v1::Submit> FakeEngineService::submits() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return submits_;
}

std::vector<v1::Hello> FakeEngineService::hellos() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return hellos_;
}

const TestModel& FakeEngineService::files() const {
  return options_.shows_tools ? GetToolsTestModel() : GetTestModel();
}

int FakeEngineService::fetches() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return fetches_;
}

size_t FakeEngineService::active() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<size_t>(std::count_if(live_.begin(), live_.end(), [](const auto& entry) {
    return entry.second.next < entry.second.pieces.size();
  }));
}

bool FakeEngineService::WaitFor(const std::function<bool()>& condition) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, kPatience, condition);
}

bool FakeEngineService::WaitForSubmits(size_t count) const {
  return WaitFor([&] { return submits_.size() >= count; });
}

bool FakeEngineService::WaitForAborts(size_t count) const {
  return WaitFor([&] { return aborted_.size() >= count; });
}

size_t FakeEngineService::aborts() const {
  std::lock_guard lock(mutex_);
  return aborted_.size();
}

bool FakeEngineService::WaitForConnections(size_t count) const {
  return WaitFor([&] { return hellos_.size() >= count; });
}

// --- The service -------------------------------------------------------------------------------

v1::EngineFrame FakeEngineService::MakeWelcome(const v1::Hello& hello) {
  v1::EngineFrame frame;
  v1::Welcome* welcome = frame.mutable_welcome();
  welcome->set_protocol(std::min(kProtocolMax, hello.protocol_max()));
  welcome->set_replica_id(options_.replica_id);
  welcome->set_heartbeat_ms(options_.heartbeat_ms);
  welcome->set_reattach_ms(options_.reattach_ms);
  for (const v1::Reattach& wanted : hello.reattach()) {
    const auto found = live_.find(wanted.stream_id());
    if (found == live_.end())
      welcome->add_lost_stream_ids(wanted.stream_id());
    else
      Rewind(wanted, &found->second);
  }
  *welcome->mutable_load() = MakeLoad();
  v1::GetModelInfoResponse* info = welcome->mutable_model();
  info->set_model(model_);
  info->set_model_digest("digest");
  info->set_fingerprint(fingerprint_);
  info->set_max_model_len(options_.max_model_len);
  info->set_vocab_size(GetTestModel().tokenizer->vocab_size());
  info->set_hidden_size(kHiddenSize);
  info->set_structural_tags(options_.structural_tags);
  info->set_created(1'700'000'000);
  info->set_max_running_requests(options_.max_running_requests);
  info->set_max_queued_requests(options_.max_queued_requests);
  if (!offers_tokenizer_) return frame;
  v1::ModelFile* file = info->add_files();
  file->set_name("tokenizer");
  file->set_sha256(files().sha256);
  file->set_bytes(files().header.size());
  return frame;
}

// The first piece that the router does not have.
void FakeEngineService::Rewind(const v1::Reattach& wanted, Live* live) {
  size_t tokens = live->resumed_tokens, prompt_logprobs = 0;
  live->next = 0;
  for (const v1::Delta& piece : live->pieces) {
    if (piece.choices_size() > 0) tokens += static_cast<size_t>(piece.choices(0).token_ids_size());
    prompt_logprobs += static_cast<size_t>(piece.prompt_logprobs_size());
    if (tokens > wanted.token_offset(0) || prompt_logprobs > wanted.prompt_logprobs()) return;
    ++live->next;
  }
}

grpc::Status FakeEngineService::Connect(grpc::ServerContext* context, Stream* stream) {
  v1::RouterFrame frame;
  if (!stream->Read(&frame) || !frame.has_hello()) return grpc::Status::CANCELLED;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!reachable_ || stopping_) return {grpc::StatusCode::UNAVAILABLE, "not reachable"};
    stream->Write(MakeWelcome(frame.hello()));
    stream_ = stream;
    context_ = context;
    connection_submits_ = 0;
    hellos_.push_back(frame.hello());
    changed_.notify_all();
  }
  while (stream->Read(&frame)) {
    std::lock_guard<std::mutex> lock(mutex_);
    OnFrame(frame);
    for (const v1::RouterFrame& each : frame.batch().frames()) OnFrame(each);
    changed_.notify_all();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (stream_ == stream) {
    stream_ = nullptr;
    context_ = nullptr;
  }
  return grpc::Status::CANCELLED;
}

void FakeEngineService::OnFrame(const v1::RouterFrame& frame) {
  if (frame.has_submit()) OnSubmit(frame.submit());
  if (!frame.has_abort()) return;
  const auto found = live_.find(frame.abort().stream_id());
  if (found != live_.end()) {
    if (!frame.abort().detach()) SendAborted(found->first, found->second);
    live_.erase(found);
  }
  if (!frame.abort().detach()) aborted_.insert(frame.abort().stream_id());
}

void FakeEngineService::OnSubmit(const v1::Submit& submit) {
  ++connection_submits_;
  const bool repeats = submit.has_keyed() && HasKeyed(submit.keyed().key());
  submits_.push_back(submit);
  if (refusals_ > 0) {
    --refusals_;
    SendError(submit.stream_id(), refusal_code_, refusal_message_);
    return;
  }
  Live live;
  live.pieces = MakePieces(submit);
  live.prompt_tokens = static_cast<uint64_t>(submit.request().token_ids().ids_size());
  live.resumed_tokens = ResumedTokens(submit);
  live.repeats = repeats;
  live_[submit.stream_id()] = std::move(live);
}

void FakeEngineService::SendError(uint64_t stream_id, int code, const std::string& message) {
  v1::EngineFrame frame;
  v1::Delta* delta = frame.mutable_step()->add_deltas();
  delta->set_stream_id(stream_id);
  delta->mutable_error()->set_code(code);
  delta->mutable_error()->set_message(message);
  delta->mutable_error()->set_retry_after_ms(2500);
  stream_->Write(frame);
}

// A prompt is computed as soon as it is there.
void FakeEngineService::SendAborted(uint64_t stream_id, const Live& live) {
  if (live.next >= live.pieces.size()) return;
  uint64_t computed = live.prompt_tokens + live.resumed_tokens;
  for (size_t i = 0; i < live.next; ++i) {
    for (const v1::ChoiceDelta& choice : live.pieces[i].choices())
      computed += static_cast<uint64_t>(choice.token_ids_size());
  }
  v1::EngineFrame frame;
  v1::Delta* delta = frame.mutable_step()->add_deltas();
  delta->set_stream_id(stream_id);
  delta->add_choices()->set_finish_reason(v1::FINISH_REASON_ABORT);
  delta->set_computed_tokens(static_cast<uint32_t>(computed));
  delta->set_repeats(live.repeats);
  delta->set_last(true);
  stream_->Write(frame);
}

bool FakeEngineService::HasPiece() const {
  return std::any_of(live_.begin(), live_.end(), [](const auto& entry) {
    return entry.second.next < entry.second.pieces.size();
  });
}

void FakeEngineService::StepLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto heartbeat = std::chrono::milliseconds(options_.heartbeat_ms);
  while (!stopping_) {
    const bool step = changed_.wait_for(lock, heartbeat, [&] {
      return stopping_ || (stream_ != nullptr && !silent_ && permits_ != 0 && HasPiece());
    });
    if (stopping_ || stream_ == nullptr || silent_) continue;
    SendStep(/*heartbeat=*/!step);
    if (step && permits_ > 0) --permits_;
    changed_.notify_all();
  }
}

void FakeEngineService::SendStep(bool heartbeat) {
  v1::EngineFrame frame;
  v1::Step* step = frame.mutable_step();
  for (auto& [id, live] : live_) {
    if (heartbeat || live.next >= live.pieces.size()) continue;
    *step->add_deltas() = live.pieces[live.next++];
    step->mutable_deltas()->rbegin()->set_repeats(live.repeats);
  }
  *step->mutable_load() = MakeLoad();
  if (options_.reports_submits) step->set_submits(connection_submits_);
  stream_->Write(frame);
}

void FakeEngineService::SetOffersTokenizer(bool offers) {
  std::lock_guard<std::mutex> lock(mutex_);
  offers_tokenizer_ = offers;
}

void FakeEngineService::SetFilesFail(bool fail) {
  std::lock_guard<std::mutex> lock(mutex_);
  files_fail_ = fail;
  changed_.notify_all();
}

grpc::Status FakeEngineService::FetchModelFile(grpc::ServerContext*,
                                               const v1::FetchModelFileRequest* request,
                                               grpc::ServerWriter<v1::FileChunk>* writer) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ++fetches_;
    changed_.notify_all();
    if (files_fail_) {
      changed_.wait(lock, [this] { return !files_fail_ || stopping_; });
      return {grpc::StatusCode::UNAVAILABLE, "the file can't be read"};
    }
  }
  const TestModel& model = files();
  if (request->sha256() != model.sha256) return {grpc::StatusCode::NOT_FOUND, "no such file"};
  SendHead(model, writer);
  return grpc::Status::OK;
}

grpc::Status FakeEngineService::FindKeyed(grpc::ServerContext*, const v1::FindKeyedRequest* request,
                                          v1::FindKeyedResponse* response) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++searches_;
  changed_.notify_all();
  if (held_searches_ > 0) {
    --held_searches_;
    changed_.wait(lock, [&, hold = search_holds_] { return search_holds_ > hold || stopping_; });
  }
  response->set_found(HasKeyed(request->key()));
  return grpc::Status::OK;
}

bool FakeEngineService::HasKeyed(const std::string& key) const {
  return std::any_of(submits_.begin(), submits_.end(),
                     [&](const v1::Submit& submit) { return submit.keyed().key() == key; });
}

grpc::Status FakeEngineService::FetchLargeResult(grpc::ServerContext*,
                                                 const v1::FetchLargeResultRequest* request,
                                                 grpc::ServerWriter<v1::GenerateResponse>* writer) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++large_fetches_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !large_held_ || stopping_; });
  ++large_answers_;
  changed_.notify_all();
  const auto found = large_.find(request->large_result_id());
  if (found == large_.end() || large_lost_) return {grpc::StatusCode::NOT_FOUND, "gone"};
  v1::GenerateResponse response;
  for (const v1::TokenLogprobs& entry : found->second) {
    *response.add_prompt_logprobs() = entry;
    if (response.prompt_logprobs_size() < 16) continue;
    writer->Write(response);
    response.Clear();
  }
  writer->Write(response);
  return grpc::Status::OK;
}

}  // namespace flotilla
