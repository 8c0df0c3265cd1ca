#include "scheduler_proc/output/output_side.h"

#include <algorithm>
#include <zmq.hpp>

namespace flotilla {
namespace {

constexpr int64_t kStuckRetryNs = 20 * kNsPerMs;
constexpr int64_t kDetokTickNs = kNsPerSecond;

}  // namespace

OutputSide::OutputSide(Deps deps) : deps_(std::move(deps)), assembler_(deps_.assembler) {}

OutputSide::~OutputSide() { Stop(); }

void OutputSide::Start() {
  thread_ = std::thread([this] { Run(); });
}

void OutputSide::Stop() {
  stop_.store(true);
  deps_.queue->Wake();
  if (thread_.joinable()) thread_.join();
}

void OutputSide::Run() {
  const Clock& clock = *deps_.assembler.clock;
  while (true) {
    Round();
    if (stop_.load()) break;  // asked behind the round, which may have taken Stop's wake-up
    Wait(deps_.tick ? deps_.tick(clock.NowNs()) : INT64_MAX);
  }
  Round();
}

void OutputSide::Round() {
  // Hellos first: a new detokenizer gets the streams as they were before this round's events.
  texts_.clear();
  deps_.assembler.detok->Receive(&texts_);
  deps_.assembler.detok->Tick(deps_.assembler.clock->NowNs());
  for (DetokText& text : texts_) assembler_.OnText(std::move(text));
  events_.clear();
  deps_.queue->Drain(&events_);
  for (OutputEvent& event : events_) assembler_.OnEvent(std::move(event));
  live_.store(assembler_.live(), std::memory_order_relaxed);  // who hears of an end sees it here
  assembler_.Flush();
}

void OutputSide::Wait(int64_t next_tick_ns) {
  const int64_t now = deps_.assembler.clock->NowNs();
  if (deps_.assembler.detok->live_streams() > 0)
    next_tick_ns = std::min(next_tick_ns, now + kDetokTickNs);
  if (deps_.assembler.detok->stuck()) next_tick_ns = std::min(next_tick_ns, now + kStuckRetryNs);
  long timeout_ms = -1;
  if (next_tick_ns != INT64_MAX)
    timeout_ms = static_cast<long>(std::max<int64_t>(0, next_tick_ns - now) / kNsPerMs) + 1;
  zmq_pollitem_t items[2] = {
      {deps_.assembler.detok->reply_socket(), 0, ZMQ_POLLIN, 0},
      {nullptr, deps_.queue->event_fd(), ZMQ_POLLIN, 0},
  };
  zmq_poll(items, 2, timeout_ms);  // EINTR: the next round finds nothing and waits again
}

}  // namespace flotilla
