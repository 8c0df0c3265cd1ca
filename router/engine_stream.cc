#include "router/engine_stream.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace flotilla {
namespace {

constexpr int kMostFrames = 64;           // of a batch
constexpr size_t kMostBytes = 256 << 10;  // of a batch, but for its first frame

}  // namespace

EngineStream::EngineStream(std::shared_ptr<v1::Engine::Stub> stub,
                           boost::asio::any_io_executor executor, CallTracker* calls,
                           Handlers handlers)
    : stub_(std::move(stub)),
      executor_(std::move(executor)),
      calls_(calls),
      handlers_(std::move(handlers)) {}

std::shared_ptr<EngineStream> EngineStream::Start(std::shared_ptr<v1::Engine::Stub> stub,
                                                  boost::asio::any_io_executor executor,
                                                  CallTracker* calls, Handlers handlers) {
  std::shared_ptr<EngineStream> stream(
      new EngineStream(std::move(stub), std::move(executor), calls, std::move(handlers)));
  stream->self_ = stream;
  calls->Add();
  stream->stub_->async()->Connect(&stream->context_, stream.get());
  // Writes start outside of reactions; the hold ends when reading does.
  stream->AddHold();
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

void EngineStream::Write(v1::RouterFrame frame) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    outgoing_.push_back(std::move(frame));
    if (writing_ || flush_posted_) return;
    flush_posted_ = true;
  }
  // Behind whatever the io thread has ready: requests that came together go together.
  boost::asio::post(executor_, [self = shared_from_this()] { self->Flush(); });
}

void EngineStream::Flush() {
  std::lock_guard<std::mutex> lock(mutex_);
  flush_posted_ = false;
  if (!writing_ && !closed_ && !outgoing_.empty()) WriteNextLocked();
}

void EngineStream::AllowBatches() {
  std::lock_guard<std::mutex> lock(mutex_);
  batches_ = true;
}

void EngineStream::WriteNextLocked() {
  writing_ = true;
  if (!batches_ || outgoing_.size() == 1) {
    in_write_ = std::move(outgoing_.front());
    outgoing_.pop_front();
  } else {
    v1::FrameBatch* batch = in_write_.mutable_batch();
    batch->clear_frames();
    size_t bytes = 0;
    while (!outgoing_.empty() && batch->frames_size() < kMostFrames) {
      bytes += outgoing_.front().ByteSizeLong();
      if (batch->frames_size() > 0 && bytes > kMostBytes) break;
      *batch->add_frames() = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
  }
  StartWrite(&in_write_);
}

void EngineStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closed_ = true;
    }
    // The other side is done or gone; make it so for our writes too.
    context_.TryCancel();
    RemoveHold();
    return;
  }
  boost::asio::post(executor_, [self = shared_from_this(), frame = std::move(incoming_)]() mutable {
    self->handlers_.on_frame(std::move(frame));
  });
  incoming_ = v1::EngineFrame();
  StartRead(&incoming_);
}

void EngineStream::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  if (!ok || closed_) {
    outgoing_.clear();
    return;
  }
  if (!outgoing_.empty()) WriteNextLocked();
}

void EngineStream::OnDone(const grpc::Status& status) {
  CallTracker* const calls = calls_;
  boost::asio::post(executor_,
                    [self = std::move(self_), status] { self->handlers_.on_done(status); });
  calls->Remove();
}

}  // namespace flotilla
