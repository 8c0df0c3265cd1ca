// A rank's end of the plan link: brings the head's plans into this host's step ring, and its
// control words into this host's control block, so that the worker's loop runs as it does beside
// the scheduler; and reports the rank's state to the head.
//
// Connect tries until the head is there and welcomes us. When the link is lost, on_lost is called
// once, from a thread of this: the process then ends, and its successor connects anew.
//
// Threads: made and destroyed by one; two of its own. Ownership: everything in Deps outlives it.
// Errors: InvalidArgument: the head runs with other flags; Cancelled: `stop` was set; those of
// rank_link.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "shm/replica_control.h"
#include "shm/ring.h"
#include "worker_proc/comm/plan_link.h"
#include "worker_proc/comm/rank_link.h"

namespace flotilla {

struct RemotePlansOptions {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  TcpAddress head;  // where the rank's proxy listens
  std::string secret;
  RankConfig config;
};

class RemotePlans {
 public:
  struct Deps {
    const ReplicaControl* control = nullptr;  // of this host
    const Segment* step_ring = nullptr;       // of this host; we are its writer
    const std::atomic<bool>* stop = nullptr;
    std::function<void(const Status&)> on_lost;
  };
  static StatusOr<std::unique_ptr<RemotePlans>> Connect(const Deps& deps,
                                                        const RemotePlansOptions& options);
  ~RemotePlans();
  RemotePlans(const RemotePlans&) = delete;
  RemotePlans& operator=(const RemotePlans&) = delete;

  // Of the head, when we connected.
  bool kv_pages_chosen() const { return kv_pages_chosen_; }

 private:
  static StatusOr<std::unique_ptr<RemotePlans>> TryConnect(const Deps& deps,
                                                           const RemotePlansOptions& options,
                                                           const SocketWait& patient);
  RemotePlans(const Deps& deps, const RemotePlansOptions& options, RingWriter writer, UniqueFd fd);
  Status Greet();
  void Start();
  Status ReceivePlans();
  Status WritePlan(std::string_view plan);
  void Apply(const HeadControl& control);
  Status SendReports();
  RankReport Report() const;
  void Lose(const Status& status);
  SocketWait Wait() const;

  const Deps deps_;
  const RemotePlansOptions options_;
  ProcessSlot* const slot_;
  const uint32_t incarnation_;
  RingWriter writer_;
  PlanLink link_;
  bool kv_pages_chosen_ = false;
  std::atomic<bool> over_{false};
  std::thread receiver_, sender_;
};

}  // namespace flotilla
