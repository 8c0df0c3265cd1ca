#include "deploy/launcher/offline/engine_run.h"

#include <grpcpp/grpcpp.h>

#include "common/base/clock.h"
#include "common/base/unix_time.h"

namespace flotilla {
namespace {

constexpr uint32_t kProtocol = 1;

}  // namespace

StatusOr<std::unique_ptr<EngineRun>> EngineRun::Connect(const std::string& address) {
  std::unique_ptr<EngineRun> run(new EngineRun());
  run->stub_ =
      v1::Engine::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  run->stream_ = run->stub_->Connect(&run->context_);
  v1::RouterFrame frame;
  v1::Hello* hello = frame.mutable_hello();
  hello->set_protocol_min(kProtocol);
  hello->set_protocol_max(kProtocol);
  hello->set_router_id("bench-offline");
  v1::EngineFrame welcome;
  if (!run->stream_->Write(frame) || !run->stream_->Read(&welcome)) return run->EndStatus();
  if (!welcome.has_welcome()) return absl::InternalError("the engine did not welcome us");
  run->model_ = welcome.welcome().model();
  run->total_pages_ = welcome.welcome().load().total_pages();
  return run;
}

EngineRun::~EngineRun() {
  context_.TryCancel();
  if (stream_ != nullptr) stream_->Finish();
}

Status EngineRun::EndStatus() {
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  return absl::UnavailableError(StrCat("the engine ended the stream: ", status.error_message()));
}

Status EngineRun::Submit(const std::vector<RandomRequest>& requests, const Options& options) {
  for (size_t i = 0; i < requests.size(); ++i) {
    v1::RouterFrame frame;
    v1::Submit* submit = frame.mutable_submit();
    submit->set_stream_id(i + 1);
    submit->set_arrival_unix_ms(UnixMs());
    v1::GenerateRequest* request = submit->mutable_request();
    request->set_request_id(StrCat("offline-", i));
    auto* ids = request->mutable_token_ids()->mutable_ids();
    ids->Add(requests[i].prompt.begin(), requests[i].prompt.end());
    request->mutable_sampling()->set_temperature(options.temperature);
    request->mutable_sampling()->set_seed(options.seed + i);
    request->mutable_stopping()->set_max_tokens(static_cast<int32_t>(requests[i].output_len));
    request->mutable_stopping()->set_ignore_eos(true);
    request->mutable_output()->set_return_token_ids(true);
    if (!stream_->Write(frame)) return EndStatus();
  }
  return OkStatus();
}

Status EngineRun::OnDelta(const v1::Delta& delta, const std::vector<RandomRequest>& requests,
                          OfflineStats* stats) {
  if (delta.stream_id() == 0 || delta.stream_id() > requests.size()) {
    return absl::InternalError(StrCat("the engine answers stream ", delta.stream_id()));
  }
  const size_t request = delta.stream_id() - 1;
  if (delta.has_error()) {
    return absl::InternalError(StrCat("request ", request, ": ", delta.error().message()));
  }
  const int64_t now_ns = RealClock::Now();
  for (const v1::ChoiceDelta& choice : delta.choices()) {
    stats->OnTokens(request, static_cast<uint32_t>(choice.token_ids_size()), now_ns);
  }
  if (!delta.last()) return OkStatus();
  stats->OnEnd(static_cast<uint32_t>(delta.usage().prompt_tokens()),
               static_cast<uint32_t>(delta.usage().cached_tokens()), now_ns);
  if (stats->tokens_of(request) == requests[request].output_len) return OkStatus();
  return absl::InternalError(StrCat("request ", request, " gave ", stats->tokens_of(request),
                                    " tokens of ", requests[request].output_len));
}

StatusOr<OfflineStats> EngineRun::Run(const std::vector<RandomRequest>& requests,
                                      const Options& options) {
  OfflineStats stats(requests.size(), RealClock::Now());
  RETURN_IF_ERROR(Submit(requests, options));
  v1::EngineFrame frame;
  while (stats.finished() < requests.size()) {
    if (!stream_->Read(&frame)) return EndStatus();
    if (options.stop != nullptr && options.stop->load()) return absl::CancelledError("stopped");
    if (!frame.has_step()) continue;
    for (const v1::Delta& delta : frame.step().deltas()) {
      RETURN_IF_ERROR(OnDelta(delta, requests, &stats));
    }
    const v1::Load& load = frame.step().load();
    stats.OnLoad(load.running_requests(), load.free_pages(), total_pages_);
    if (options.progress) options.progress(stats);
  }
  return stats;
}

}  // namespace flotilla
