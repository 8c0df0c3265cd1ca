// One router's side of Engine.Connect: its streams' logs, kept over reconnects.
//
// The output thread appends; the connection that is attached sends, one frame at a time, each with
// everything that is unsent (at most kMaxFrameBytes). A connection that breaks leaves the streams
// for reattach_ms; a router that leaves more than max_unsent_bytes unread is dropped the same way.
// Finished streams are kept for reattach_ms too, for a router that lost the last frame.
//
// RouterHub owns the channels by router id (at most max_routers) and drives their timers.
// Threads: any; locks: hub before channel. FrameConnection's methods are called with the channel's
// lock held and must not call back. Times: CLOCK_MONOTONIC ns.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "scheduler_proc/exchange/cache_board.h"
#include "scheduler_proc/exchange/output_event.h"
#include "scheduler_proc/front/stream_log.h"

namespace flotilla {

inline constexpr size_t kMaxFrameBytes = 256 << 10;

struct RouterChannelOptions {
  int64_t reattach_ns = 5 * kNsPerSecond;
  int64_t heartbeat_ns = 1 * kNsPerSecond;
  size_t max_unsent_bytes = 16 << 20;
  size_t max_routers = 64;
};

// The gRPC stream that carries a channel's frames.
class FrameConnection {
 public:
  virtual ~FrameConnection() = default;
  // Starts writing; RouterChannel::OnWritten follows.
  virtual void Write(v1::EngineFrame&& frame) = 0;
  // Ends the stream. No Write follows.
  virtual void Close(const Status& status) = 0;
};

class RouterChannel final : public OutputSink {
 public:
  struct Deps {
    const Clock* clock = nullptr;
    std::function<void(v1::Load*)> load;  // the current load
    std::function<void(ReqId)> abort;     // ends a request nobody waits for
    CacheBoard* cache = nullptr;          // null: there are no cache events
  };
  RouterChannel(const RouterChannelOptions& options, Deps deps)
      : options_(options), deps_(std::move(deps)) {}

  // OutputSink, by the output thread.
  bool Append(uint64_t stream, v1::Delta&& piece) override;
  void Flush() override;

  // A new connection takes over; an older one is closed. Streams that `hello` does not name are
  // aborted. Sends `welcome` first, with the lost streams filled in.
  void Attach(FrameConnection* connection, const v1::Hello& hello, v1::Welcome&& welcome);
  // The connection is gone (it must not be used afterwards). Idempotent.
  void Detach(FrameConnection* connection);
  void OnWritten(FrameConnection* connection, bool ok);

  // For a Submit of `connection`. AlreadyExists: the router used this number before. Aborted: the
  // connection is no longer its router's, which asks again for what it was told is lost.
  Status Open(const FrameConnection* connection, uint64_t stream, ReqId id, uint32_t first_token);
  // The stream shows request `id`, which others may be given too: it goes on when this router
  // leaves.
  void Share(uint64_t stream, ReqId id);
  // The router wants no more of it. The request goes on if it is shared, else it is aborted.
  void Drop(uint64_t stream);
  // A Submit of `connection` was handled: from now on the load counts it in. Not of one that
  // another has taken over from.
  void CountSubmit(const FrameConnection* connection);
  // 0: unknown or finished.
  ReqId Find(uint64_t stream);
  // Pong, Goodbye: sent before the next step. Older unsent ones of the kind are replaced.
  void SendControl(v1::EngineFrame&& frame);

  // The load has changed by more than pieces will tell: it is sent without waiting for the next.
  void TellLoad();
  // Heartbeat, expiry. Returns the next time it wants to be called. *expired: nothing is left.
  int64_t Tick(int64_t now_ns, bool* expired);
  // Its router is away and has nothing to come back for.
  bool Forgettable();
  bool connected();
  size_t unsent_bytes();
  // Bytes that may be appended at once without those of running requests coming near the limit.
  size_t ReplayRoom();

 private:
  struct Stream {
    StreamLog log;
    ReqId id = 0;
    bool dirty = false;
    bool shared = false;
    int64_t finished_ns = 0;  // its last frame was built; 0: not yet
  };
  void PumpLocked();
  bool NextFrameLocked(v1::EngineFrame* frame);
  void TakeStepLocked(v1::Step* step);
  void AbandonLocked(const Stream& stream);
  void CountLess(size_t bytes);
  void MarkDirtyLocked(uint64_t number, Stream* stream);
  void DropConnectionLocked(const Status& status);
  void ForgetConnectionLocked();
  void AbortAllLocked();
  void PurgeFinishedLocked(int64_t now_ns);

  const RouterChannelOptions options_;
  const Deps deps_;
  std::mutex mutex_;
  // All below guarded by mutex_.
  FrameConnection* connection_ = nullptr;
  bool writing_ = false;
  bool heartbeat_due_ = false;
  int64_t last_frame_ns_ = 0;
  int64_t detached_ns_ = 0;
  size_t unsent_bytes_ = 0;
  size_t backlog_bytes_ = 0;  // of them: from before connection_, which may take its time with them
  uint64_t submits_ = 0;      // Submit frames of connection_
  std::unordered_map<uint64_t, Stream> streams_;
  std::deque<uint64_t> dirty_;
  std::deque<v1::EngineFrame> control_;
  bool wants_cache_ = false;
  CacheBoard::Cursor cache_cursor_;  // of connection_
};

class RouterHub {
 public:
  // `wake`: the output thread should call Tick soon.
  RouterHub(const RouterChannelOptions& options, RouterChannel::Deps deps,
            std::function<void()> wake)
      : options_(options), deps_(std::move(deps)), wake_(std::move(wake)) {}

  // The router's channel, made if it has none, with `connection` attached (RouterChannel::Attach).
  // *channel is set before the connection's first Write. ResourceExhausted: too many routers.
  Status Attach(FrameConnection* connection, const v1::Hello& hello, v1::Welcome&& welcome,
                std::shared_ptr<RouterChannel>* channel);
  int64_t Tick(int64_t now_ns);
  // To every connected router.
  void Broadcast(const v1::EngineFrame& frame);
  void TellLoad();
  size_t size();

 private:
  const RouterChannelOptions options_;
  const RouterChannel::Deps deps_;
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<RouterChannel>> channels_;  // guarded by mutex_
};

}  // namespace flotilla
