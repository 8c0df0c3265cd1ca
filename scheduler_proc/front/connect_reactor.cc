#include "scheduler_proc/front/connect_reactor.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/unix_time.h"
#include "common/text/incremental_detokenizer.h"
#include "scheduler_proc/exchange/errors.h"

namespace flotilla {
namespace {

constexpr size_t kMaxRouterIdBytes = 128;
constexpr size_t kMaxTenantBytes = 256;
constexpr int64_t kMaxTransitMs = 1'000;

// How long ago the router sent the request, by wall clocks. More than a frame can be under way is a
// difference between the clocks.
int64_t ElapsedMs(int64_t arrival_unix_ms) {
  if (arrival_unix_ms <= 0) return 0;
  const int64_t elapsed = UnixMs() - arrival_unix_ms;
  return elapsed < 0 || elapsed > kMaxTransitMs ? 0 : elapsed;
}

// The output that the client has of a request that goes on here; empty if it has more than a resume
// tells.
v1::Delta BeforeResume(const CheckedRequest& checked, const v1::Submit& submit,
                       const Tokenizer& tokenizer) {
  v1::Delta before;
  const v1::OutputOptions& output = submit.request().output();
  if (submit.resume_size() == 0 || output.has_logprobs() || output.has_prompt_logprobs())
    return before;
  const v1::ResumeChoice& resume = submit.resume(0);
  IncrementalDetokenizer detokenizer(&tokenizer, checked.options.skip_special);
  std::string text;
  for (const int32_t id : resume.output_ids()) text += detokenizer.Push(id);
  if (text.size() < resume.emitted_bytes()) return before;
  text.resize(resume.emitted_bytes());  // the rest was held back: it may become a stop string
  v1::ChoiceDelta* choice = before.add_choices();
  *choice->mutable_token_ids() = resume.output_ids();
  choice->set_text(std::move(text));
  return before;
}

}  // namespace

ConnectReactor::ConnectReactor(const ServiceDeps* deps) : deps_(deps) { StartRead(&in_); }

void ConnectReactor::OnReadDone(bool ok) {
  if (!ok) return Leave(grpc::Status::OK);
  const Status status = channel_ == nullptr ? OnHello() : OnFrame(&in_);
  if (!status.ok()) return Leave(ToGrpc(status));
  StartRead(&in_);
}

void ConnectReactor::OnWriteDone(bool ok) { channel_->OnWritten(this, ok); }

void ConnectReactor::OnDone() {
  if (channel_ != nullptr) channel_->Detach(this);
  delete this;
}

void ConnectReactor::Write(v1::EngineFrame&& frame) {
  out_ = std::move(frame);
  StartWrite(&out_);
}

void ConnectReactor::Close(const Status& status) { FinishOnce(ToGrpc(status)); }

void ConnectReactor::Leave(const grpc::Status& status) {
  if (channel_ != nullptr) channel_->Detach(this);
  FinishOnce(status);
}

void ConnectReactor::FinishOnce(const grpc::Status& status) {
  if (!finished_.exchange(true)) Finish(status);
}

Status ConnectReactor::OnHello() {
  if (in_.kind_case() != v1::RouterFrame::kHello)
    return absl::InvalidArgumentError("hello: the first frame must be Hello");
  const v1::Hello& hello = in_.hello();
  // A draining replica is there for what it has begun: its routers may come back for that.
  if (!deps_->front->served()) RETURN_IF_ERROR(deps_->front->Ready());
  if (hello.protocol_min() > kProtocolMax || hello.protocol_max() < kProtocolMin)
    return absl::FailedPreconditionError(
        StrCat("hello.protocol_max: the router speaks protocols ", hello.protocol_min(), " … ",
               hello.protocol_max(), ", this replica ", kProtocolMin, " … ", kProtocolMax));
  if (hello.router_id().empty() || hello.router_id().size() > kMaxRouterIdBytes)
    return absl::InvalidArgumentError(
        StrCat("hello.router_id: 1 … ", kMaxRouterIdBytes, " bytes are needed"));
  v1::Welcome welcome;
  welcome.set_protocol(std::min(kProtocolMax, hello.protocol_max()));
  welcome.set_replica_id(deps_->info->replica_id());
  *welcome.mutable_model() = deps_->info->Get();
  deps_->load->Fill(welcome.mutable_load());
  welcome.set_reattach_ms(static_cast<uint32_t>(deps_->channel.reattach_ns / kNsPerMs));
  welcome.set_heartbeat_ms(static_cast<uint32_t>(deps_->channel.heartbeat_ns / kNsPerMs));
  RETURN_IF_ERROR(deps_->hub->Attach(this, hello, std::move(welcome), &channel_));
  Log().info("router connected {} {}", Kv("router", hello.router_id()),
             Kv("reattached", hello.reattach_size()));
  return OkStatus();
}

Status ConnectReactor::OnFrame(v1::RouterFrame* frame) {
  switch (frame->kind_case()) {
    case v1::RouterFrame::kSubmit: {
      Status status = OnSubmit(frame->mutable_submit());
      channel_->CountSubmit(this);
      return status;
    }
    case v1::RouterFrame::kAbort:
      OnAbort(frame->abort());
      return OkStatus();
    case v1::RouterFrame::kPing: {
      v1::EngineFrame pong;
      pong.mutable_pong()->set_sent_ns(frame->ping().sent_ns());
      channel_->SendControl(std::move(pong));
      return OkStatus();
    }
    case v1::RouterFrame::kBatch:
      return OnBatch(frame->mutable_batch());
    case v1::RouterFrame::kHello:
      return absl::InvalidArgumentError("hello: only the first frame may be Hello");
    case v1::RouterFrame::KIND_NOT_SET:
      break;  // a kind of a later protocol
  }
  return OkStatus();
}

Status ConnectReactor::OnBatch(v1::FrameBatch* batch) {
  for (v1::RouterFrame& frame : *batch->mutable_frames()) {
    if (frame.has_batch()) return absl::InvalidArgumentError("batch.frames: one is a batch itself");
    RETURN_IF_ERROR(OnFrame(&frame));
  }
  return OkStatus();
}

void ConnectReactor::OnAbort(const v1::AbortStream& abort) {
  if (abort.detach()) return channel_->Drop(abort.stream_id());
  const ReqId id = channel_->Find(abort.stream_id());
  if (id == 0) return;
  const bool deadline = abort.reason() == v1::FINISH_REASON_DEADLINE;
  deps_->front->Abort(id, deadline ? Finish::kDeadline : Finish::kAbort);
}

Status ConnectReactor::OnSubmit(v1::Submit* submit) {
  const uint64_t stream = submit->stream_id();
  const ReqId id = deps_->front->NewId();
  const uint32_t resumed =
      submit->resume_size() > 0 ? static_cast<uint32_t>(submit->resume(0).output_ids_size()) : 0;
  RETURN_IF_ERROR(channel_->Open(this, stream, id, resumed));
  KeyedResults::Consumer consumer{channel_, stream, resumed};
  if (submit->resume_size() > 0) consumer.text_bytes = submit->resume(0).emitted_bytes();
  consumer.room = channel_->ReplayRoom();
  if (submit->has_keyed() && !deps_->front->Ready().ok()) {
    // A draining replica begins nothing, but what it has begun is given to who asks again.
    const auto place = deps_->keyed->Attach(submit->keyed(), consumer);
    if (place.ok()) channel_->Share(stream, place->id);
    if (place.ok()) return OkStatus();
    if (!absl::IsNotFound(place.status())) {
      Refuse(channel_.get(), stream, place.status());
      return OkStatus();
    }
  }
  StatusOr<CheckedRequest> checked = Check(*submit);
  if (!checked.ok()) {
    Refuse(channel_.get(), stream, checked.status());
    return OkStatus();
  }
  std::shared_ptr<OutputSink> sink = channel_;
  if (submit->has_keyed()) {
    const auto place = deps_->keyed->AttachOrBegin(
        submit->keyed(), id, consumer, BeforeResume(*checked, *submit, deps_->front->tokenizer()));
    if (!place.ok()) {
      Refuse(channel_.get(), stream, place.status());
      return OkStatus();
    }
    if (place->shared) channel_->Share(stream, place->id);
    if (place->sink == nullptr) return OkStatus();
    sink = place->sink;
  }
  const Status status = deps_->front->Enqueue(id, *std::move(checked), submit->tenant(),
                                              ElapsedMs(submit->arrival_unix_ms()), sink, stream);
  if (!status.ok()) Refuse(sink.get(), stream, status);
  return OkStatus();
}

StatusOr<CheckedRequest> ConnectReactor::Check(const v1::Submit& submit) const {
  if (submit.tenant().size() > kMaxTenantBytes)
    return absl::InvalidArgumentError(StrCat("tenant: more than ", kMaxTenantBytes, " bytes"));
  if (submit.has_embed())
    return deps_->front->CheckEmbed(submit.request(), submit.embed(), /*text_allowed=*/false);
  ASSIGN_OR_RETURN(CheckedRequest checked, deps_->front->Check(submit.request(), submit.resume(),
                                                               /*text_allowed=*/false));
  if (checked.choices.num_candidates > 1)
    return absl::InvalidArgumentError("sampling.n: a Submit is one choice");
  return checked;
}

void ConnectReactor::Refuse(OutputSink* sink, uint64_t stream, const Status& status) {
  sink->Append(stream, RefusalDelta(status));
  sink->Flush();
}

}  // namespace flotilla
