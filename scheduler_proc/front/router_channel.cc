#include "scheduler_proc/front/router_channel.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"

namespace flotilla {
namespace {

// A channel that nobody reads gives its requests up at this many times max_unsent_bytes.
constexpr size_t kAbandonFactor = 4;

}  // namespace

bool RouterChannel::Append(uint64_t stream, v1::Delta&& piece) {
  std::lock_guard lock(mutex_);
  auto it = streams_.find(stream);
  if (it == streams_.end()) return false;
  unsent_bytes_ += it->second.log.Append(std::move(piece));
  if (it->second.log.complete()) it->second.id = 0;
  MarkDirtyLocked(stream, &it->second);
  const size_t fresh = unsent_bytes_ - backlog_bytes_;
  if (fresh <= options_.max_unsent_bytes) return true;
  if (connection_ != nullptr)
    DropConnectionLocked(
        absl::ResourceExhaustedError(StrCat("the router left ", unsent_bytes_, " bytes unread")));
  if (fresh > kAbandonFactor * options_.max_unsent_bytes) AbortAllLocked();
  return true;
}

void RouterChannel::Flush() {
  std::lock_guard lock(mutex_);
  PumpLocked();
}

void RouterChannel::Attach(FrameConnection* connection, const v1::Hello& hello,
                           v1::Welcome&& welcome) {
  std::lock_guard lock(mutex_);
  if (connection_ != nullptr)
    DropConnectionLocked(absl::AbortedError("a newer connection of this router took over"));
  control_.clear();
  std::set<uint64_t> kept;
  for (const v1::Reattach& wanted : hello.reattach()) {
    auto it = streams_.find(wanted.stream_id());
    const uint32_t offset = wanted.token_offset_size() > 0 ? wanted.token_offset(0) : 0;
    if (it != streams_.end() && it->second.log.Rewind(offset, wanted.prompt_logprobs())) {
      kept.insert(wanted.stream_id());
    } else {
      welcome.add_lost_stream_ids(wanted.stream_id());
    }
  }
  dirty_.clear();
  unsent_bytes_ = 0;
  for (auto it = streams_.begin(); it != streams_.end();) {
    Stream& stream = it->second;
    if (kept.count(it->first) == 0) {
      AbandonLocked(stream);
      it = streams_.erase(it);
      continue;
    }
    stream.dirty = false;
    stream.finished_ns = 0;
    unsent_bytes_ += stream.log.unsent_bytes();
    MarkDirtyLocked(it->first, &stream);
    ++it;
  }
  backlog_bytes_ = unsent_bytes_;
  connection_ = connection;
  writing_ = false;
  submits_ = 0;
  wants_cache_ = hello.cache_events() && deps_.cache != nullptr;
  cache_cursor_ = {};
  heartbeat_due_ = wants_cache_;  // at once what is cached
  v1::EngineFrame frame;
  *frame.mutable_welcome() = std::move(welcome);
  control_.push_back(std::move(frame));
  PumpLocked();
}

void RouterChannel::Detach(FrameConnection* connection) {
  std::lock_guard lock(mutex_);
  if (connection_ == connection) ForgetConnectionLocked();
}

void RouterChannel::ForgetConnectionLocked() {
  connection_ = nullptr;
  writing_ = false;
  backlog_bytes_ = 0;
  detached_ns_ = deps_.clock->NowNs();
}

void RouterChannel::OnWritten(FrameConnection* connection, bool ok) {
  std::lock_guard lock(mutex_);
  if (connection_ != connection) return;
  writing_ = false;
  if (ok) PumpLocked();
}

Status RouterChannel::Open(const FrameConnection* connection, uint64_t stream, ReqId id,
                           uint32_t first_token) {
  std::lock_guard lock(mutex_);
  if (connection_ != connection)
    return absl::AbortedError("a newer connection of this router took over");
  const auto [it, added] = streams_.try_emplace(stream, Stream{StreamLog(stream, first_token), id});
  if (!added) return absl::AlreadyExistsError(StrCat("stream_id: ", stream, " is already in use"));
  return OkStatus();
}

void RouterChannel::Share(uint64_t stream, ReqId id) {
  std::lock_guard lock(mutex_);
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  it->second.shared = true;
  it->second.id = it->second.log.complete() ? 0 : id;
}

void RouterChannel::Drop(uint64_t stream) {
  std::lock_guard lock(mutex_);
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  CountLess(it->second.log.unsent_bytes());
  AbandonLocked(it->second);
  streams_.erase(it);
}

void RouterChannel::CountLess(size_t bytes) {
  unsent_bytes_ -= bytes;
  backlog_bytes_ -= std::min(backlog_bytes_, bytes);
}

void RouterChannel::AbandonLocked(const Stream& stream) {
  if (stream.id != 0 && !stream.shared) deps_.abort(stream.id);
}

void RouterChannel::CountSubmit(const FrameConnection* connection) {
  std::lock_guard lock(mutex_);
  if (connection_ == connection) ++submits_;
}

ReqId RouterChannel::Find(uint64_t stream) {
  std::lock_guard lock(mutex_);
  auto it = streams_.find(stream);
  return it == streams_.end() ? 0 : it->second.id;
}

void RouterChannel::SendControl(v1::EngineFrame&& frame) {
  std::lock_guard lock(mutex_);
  if (connection_ == nullptr) return;
  for (v1::EngineFrame& waiting : control_) {
    if (waiting.kind_case() != frame.kind_case()) continue;
    waiting = std::move(frame);
    return;
  }
  control_.push_back(std::move(frame));
  PumpLocked();
}

void RouterChannel::TellLoad() {
  std::lock_guard lock(mutex_);
  heartbeat_due_ = true;
  PumpLocked();
}

bool RouterChannel::Forgettable() {
  std::lock_guard lock(mutex_);
  return connection_ == nullptr && streams_.empty();
}

int64_t RouterChannel::Tick(int64_t now_ns, bool* expired) {
  std::lock_guard lock(mutex_);
  *expired = false;
  PurgeFinishedLocked(now_ns);
  if (connection_ == nullptr) {
    const int64_t until = detached_ns_ + options_.reattach_ns;
    if (now_ns < until) return until;
    AbortAllLocked();
    *expired = true;
    return INT64_MAX;
  }
  if (now_ns - last_frame_ns_ >= options_.heartbeat_ns) {
    heartbeat_due_ = true;
    PumpLocked();
    return now_ns + options_.heartbeat_ns;
  }
  return last_frame_ns_ + options_.heartbeat_ns;
}

bool RouterChannel::connected() {
  std::lock_guard lock(mutex_);
  return connection_ != nullptr;
}

size_t RouterChannel::unsent_bytes() {
  std::lock_guard lock(mutex_);
  return unsent_bytes_;
}

size_t RouterChannel::ReplayRoom() {
  std::lock_guard lock(mutex_);
  const size_t room = options_.max_unsent_bytes / 2;
  return room - std::min(unsent_bytes_ - backlog_bytes_, room);
}

void RouterChannel::PumpLocked() {
  if (connection_ == nullptr || writing_) return;
  v1::EngineFrame frame;
  if (!NextFrameLocked(&frame)) return;
  writing_ = true;
  last_frame_ns_ = deps_.clock->NowNs();
  connection_->Write(std::move(frame));
}

bool RouterChannel::NextFrameLocked(v1::EngineFrame* frame) {
  if (!control_.empty()) {
    *frame = std::move(control_.front());
    control_.pop_front();
    return true;
  }
  if (dirty_.empty() && !heartbeat_due_) return false;
  TakeStepLocked(frame->mutable_step());
  heartbeat_due_ = wants_cache_ && deps_.cache->Take(&cache_cursor_, frame->mutable_step());
  frame->mutable_step()->set_submits(submits_);
  deps_.load(frame->mutable_step()->mutable_load());
  return true;
}

void RouterChannel::TakeStepLocked(v1::Step* step) {
  size_t budget = kMaxFrameBytes;
  for (size_t left = dirty_.size(); left > 0 && budget > 0; --left) {
    const uint64_t number = dirty_.front();
    dirty_.pop_front();
    auto it = streams_.find(number);
    if (it == streams_.end() || !it->second.dirty) continue;
    Stream& stream = it->second;
    stream.dirty = false;
    if (!stream.log.HasUnsent()) continue;
    const size_t before = stream.log.unsent_bytes();
    stream.log.Take(budget, step->add_deltas());
    const size_t taken = before - stream.log.unsent_bytes();
    CountLess(taken);
    budget -= std::min(budget, taken);
    if (stream.log.last_sent()) stream.finished_ns = deps_.clock->NowNs();
    MarkDirtyLocked(number, &stream);
  }
}

void RouterChannel::MarkDirtyLocked(uint64_t number, Stream* stream) {
  if (stream->dirty || !stream->log.HasUnsent()) return;
  stream->dirty = true;
  dirty_.push_back(number);
}

void RouterChannel::DropConnectionLocked(const Status& status) {
  Log().warn("router dropped {}", Kv("reason", std::string(status.message())));
  connection_->Close(status);
  ForgetConnectionLocked();
}

void RouterChannel::AbortAllLocked() {
  for (const auto& [number, stream] : streams_) AbandonLocked(stream);
  streams_.clear();
  backlog_bytes_ = 0;
  dirty_.clear();
  unsent_bytes_ = 0;
}

void RouterChannel::PurgeFinishedLocked(int64_t now_ns) {
  std::erase_if(streams_, [&](const auto& entry) {
    const Stream& stream = entry.second;
    return stream.finished_ns != 0 && now_ns - stream.finished_ns >= options_.reattach_ns;
  });
}

Status RouterHub::Attach(FrameConnection* connection, const v1::Hello& hello, v1::Welcome&& welcome,
                         std::shared_ptr<RouterChannel>* channel) {
  const std::string& router_id = hello.router_id();
  {
    std::lock_guard lock(mutex_);
    auto it = channels_.find(router_id);
    if (it == channels_.end()) {
      // Routers that come and go must not keep a new one out for as long as they might come back.
      if (channels_.size() >= options_.max_routers)
        std::erase_if(channels_, [](const auto& entry) { return entry.second->Forgettable(); });
      if (channels_.size() >= options_.max_routers)
        return absl::ResourceExhaustedError(
            StrCat("router_id: ", options_.max_routers, " routers are connected already"));
      it = channels_.emplace(router_id, std::make_shared<RouterChannel>(options_, deps_)).first;
    }
    *channel = it->second;
    it->second->Attach(connection, hello, std::move(welcome));
  }
  wake_();
  return OkStatus();
}

int64_t RouterHub::Tick(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  int64_t next = INT64_MAX;
  for (auto it = channels_.begin(); it != channels_.end();) {
    bool expired = false;
    next = std::min(next, it->second->Tick(now_ns, &expired));
    it = expired ? channels_.erase(it) : std::next(it);
  }
  return next;
}

void RouterHub::Broadcast(const v1::EngineFrame& frame) {
  std::lock_guard lock(mutex_);
  for (auto& [id, channel] : channels_) channel->SendControl(v1::EngineFrame(frame));
}

void RouterHub::TellLoad() {
  std::lock_guard lock(mutex_);
  for (auto& [id, channel] : channels_) channel->TellLoad();
}

size_t RouterHub::size() {
  std::lock_guard lock(mutex_);
  return channels_.size();
}

}  // namespace flotilla
