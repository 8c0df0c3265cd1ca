#include "scheduler_proc/front/engine_service.h"

#include <algorithm>
#include <utility>

#include "scheduler_proc/exchange/errors.h"
#include "scheduler_proc/front/connect_reactor.h"

namespace flotilla {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

// Streams a file that outlives the call.
class FileReactor final : public grpc::ServerWriteReactor<v1::FileChunk> {
 public:
  explicit FileReactor(const std::string* file) : file_(file) {
    if (file_ == nullptr)
      Finish({grpc::StatusCode::NOT_FOUND, "sha256: no file of this digest here"});
    else
      Next();
  }
  void OnWriteDone(bool ok) override {
    if (!ok)
      Finish(grpc::Status::CANCELLED);
    else
      Next();
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (offset_ >= file_->size()) return Finish(grpc::Status::OK);
    const size_t bytes = std::min(kChunkBytes, file_->size() - offset_);
    chunk_.set_data(file_->substr(offset_, bytes));
    offset_ += bytes;
    StartWrite(&chunk_);
  }

  const std::string* const file_;
  size_t offset_ = 0;
  v1::FileChunk chunk_;
};

class LargeResultReactor final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit LargeResultReactor(std::optional<std::vector<v1::TokenLogprobs>> entries) {
    if (!entries.has_value()) {
      Finish({grpc::StatusCode::NOT_FOUND,
              "large_result_id: unknown, fetched already or older than 60 s"});
      return;
    }
    entries_ = *std::move(entries);
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (!ok)
      Finish(grpc::Status::CANCELLED);
    else
      Next();
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (next_ >= entries_.size()) return Finish(grpc::Status::OK);
    response_.Clear();
    TakePiece(&entries_, &next_, &response_);
    StartWrite(&response_);
  }

  std::vector<v1::TokenLogprobs> entries_;
  size_t next_ = 0;
  v1::GenerateResponse response_;
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

grpc::ServerBidiReactor<v1::RouterFrame, v1::EngineFrame>* EngineService::Connect(
    grpc::CallbackServerContext*) {
  return new ConnectReactor(&deps_);
}

grpc::ServerUnaryReactor* EngineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetModelInfoRequest*,
                                                      v1::GetModelInfoResponse* response) {
  *response = deps_.info->Get();
  if (response->fingerprint().empty())
    return Answer(context, {grpc::StatusCode::UNAVAILABLE, "the replica is still loading"});
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* EngineService::GetLoad(grpc::CallbackServerContext* context,
                                                 const v1::GetLoadRequest*, v1::Load* response) {
  deps_.load->Fill(response);
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* EngineService::Drain(grpc::CallbackServerContext* context,
                                               const v1::DrainRequest*,
                                               v1::DrainResponse* response) {
  deps_.on_drain();
  response->set_running_requests(static_cast<uint32_t>(deps_.front->live()));
  return Answer(context, grpc::Status::OK);
}

grpc::ServerWriteReactor<v1::FileChunk>* EngineService::FetchModelFile(
    grpc::CallbackServerContext*, const v1::FetchModelFileRequest* request) {
  return new FileReactor(deps_.info->FindFile(request->sha256()));
}

grpc::ServerWriteReactor<v1::GenerateResponse>* EngineService::FetchLargeResult(
    grpc::CallbackServerContext*, const v1::FetchLargeResultRequest* request) {
  return new LargeResultReactor(deps_.large_results->Take(request->large_result_id()));
}

grpc::ServerUnaryReactor* EngineService::FindKeyed(grpc::CallbackServerContext* context,
                                                   const v1::FindKeyedRequest* request,
                                                   v1::FindKeyedResponse* response) {
  response->set_found(deps_.keyed->Contains(request->key()));
  return Answer(context, grpc::Status::OK);
}

}  // namespace flotilla
