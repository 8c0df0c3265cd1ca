#include "tests/fakes/fake_replica.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "shm/futex.h"

namespace flotilla {
namespace {

constexpr size_t kRingBytes = 4 << 20;
constexpr int64_t kPollNs = 20 * kNsPerMs;

uint64_t Mix(uint64_t h, uint64_t value) {
  h ^= value + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 33);
}

Segment MakeRing(const char* name, uint32_t readers) {
  auto segment = Segment::Create(name, RingSegmentBytes(kRingBytes));
  CHECK_OK(segment.status());
  CHECK_OK(InitRing(*segment, readers));
  return *std::move(segment);
}

ReplicaControl MakeControl(uint32_t tp) {
  auto control = ReplicaControl::Create(tp);
  CHECK_OK(control.status());
  return *std::move(control);
}

PositionLogprobs Logprobs(int32_t token, uint32_t position, uint32_t num, uint32_t vocab) {
  PositionLogprobs out;
  out.token = token;
  out.logprob = FakeLogprob(token, position);
  out.rank = 1;
  for (uint32_t i = 0; i < num; ++i)
    out.top.push_back({static_cast<int32_t>((static_cast<uint32_t>(token) + i) % vocab),
                       out.logprob - static_cast<float>(i)});
  return out;
}

}  // namespace

float FakeLogprob(int32_t token, uint32_t position) {
  return -static_cast<float>(Mix(position, static_cast<uint64_t>(token)) % 1000) / 128.0f;
}

std::vector<float> FakeEmbedding(std::span<const int32_t> prompt, bool mean) {
  uint64_t h = mean ? 11 : 3;
  std::vector<float> out;
  for (int32_t token : prompt) h = Mix(h, static_cast<uint64_t>(token));
  for (uint64_t i = 0; i < 4; ++i) out.push_back(static_cast<float>(Mix(h, i) % 1000) / 64.0f - 7);
  return out;
}

int32_t FakeNextToken(const FakeModel& model, std::span<const int32_t> tokens,
                      const SamplingParams& sampling) {
  uint64_t h = sampling.temperature > 0 ? Mix(7, sampling.seed) : 1;
  for (int32_t token : tokens) h = Mix(h, static_cast<uint64_t>(token));
  const bool masked = tokens.size() < sampling.min_tokens_until;
  if (model.eos_every != 0 && !masked && h % model.eos_every == 0) return model.eos_id;
  return static_cast<int32_t>((h >> 8) % static_cast<uint64_t>(model.eos_id - 1));
}

std::vector<int32_t> FakeGenerate(const FakeModel& model, std::vector<int32_t> prompt,
                                  const SamplingParams& sampling, uint32_t max_tokens) {
  std::vector<int32_t> output;
  while (output.size() < max_tokens) {
    const int32_t token = FakeNextToken(model, prompt, sampling);
    output.push_back(token);
    prompt.push_back(token);
    if (token == model.eos_id) break;
  }
  return output;
}

std::vector<int32_t> FakeGreedy(std::vector<int32_t> prompt, uint32_t max_tokens,
                                const FakeModel& model) {
  SamplingParams greedy;
  greedy.temperature = 0;
  return FakeGenerate(model, std::move(prompt), greedy, max_tokens);
}

// One rank: a thread that plays the worker process.
class FakeReplica::Rank {
 public:
  Rank(FakeReplica* replica, uint32_t rank) : replica_(replica), rank_(rank) {
    slot().incarnation.fetch_add(1);
    ReplicaControl::SetState(&slot(), ProcessState::kStarting);
    thread_ = std::thread([this] { Run(); });
  }
  ~Rank() { Kill(); }

  void Kill() {
    killed_.store(true);
    replica_->released_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct SlotState {
    SamplingParams sampling;
    std::vector<uint32_t> pages;
    int32_t last_token = -1;
    uint32_t num_pooled = 0;
  };
  ProcessSlot& slot() { return replica_->control_->workers[rank_]; }
  void Beat() { slot().heartbeat_ns.store(RealClock::Now()); }

  void Run() {
    WorkerReport& report = replica_->control_->reports[rank_];
    report.max_kv_pages.store(replica_->options_.num_pages);
    ReplicaControl::SetBackend(&report, "fake-backend");
    report.page_bytes.store(replica_->options_.page_size * sizeof(int32_t));
    ReplicaControl::SetState(&slot(), ProcessState::kLoading);
    ReplicaControl::SetState(&slot(), ProcessState::kLoaded);
    ReplicaControl::Ring(&replica_->control_->doorbell);
    if (!WaitAdmitted()) return;
    auto plans = RingReader::Attach(&replica_->step_ring_, rank_, WaitPolicy{});
    CHECK_OK(plans.status());
    auto results = RingWriter::Attach(&replica_->result_ring_);
    CHECK_OK(results.status());
    while (!killed_.load()) {
      Beat();
      auto frame = plans->Read(RealClock::Now() + kPollNs);
      if (!frame.ok()) {
        if (absl::IsDeadlineExceeded(frame.status())) continue;
        return;
      }
      const Status parsed = ParseStepPlan(*frame, Limits(), &plan_);
      plans->Release();
      if (!parsed.ok()) {
        replica_->bad_plans_.fetch_add(1);
        continue;
      }
      if (plan_.command == StepCommand::kReset) Reset();
      if (plan_.command == StepCommand::kForward && plan_.epoch == epoch_) Forward(&*results);
    }
  }

  StepPlanLimits Limits() const {
    const FakeReplicaOptions& o = replica_->options_;
    return {.max_slots = o.max_slots,
            .max_tokens = 1u << 20,
            .num_pages = o.num_pages,
            .vocab_size = o.model.vocab_size,
            .max_positions = o.context_length};
  }

  bool WaitAdmitted() {
    std::atomic<uint32_t>& bell = replica_->control_->worker_bell;
    while (!killed_.load()) {
      const uint32_t seen = bell.load();
      if (slot().admitted.load() == slot().incarnation.load()) return true;
      Beat();
      FutexWait(&bell, seen, RealClock::Now() + kPollNs);
    }
    return false;
  }

  void Reset() {
    epoch_ = plan_.epoch;
    slots_.clear();
    kv_.assign(static_cast<size_t>(replica_->options_.num_pages) * replica_->options_.page_size,
               -1);
    replica_->open_slots_.store(0);
    replica_->control_->reports[rank_].probe_hash.store(replica_->probe_hash_.load());
    slot().ready_epoch.store(epoch_);
    ReplicaControl::SetState(&slot(), ProcessState::kReady);
    ReplicaControl::Ring(&replica_->control_->doorbell);
  }

  void Forward(RingWriter* results) {
    StepResult result;
    result.step_id = plan_.step_id;
    result.epoch = plan_.epoch;
    result.start_ns = RealClock::Now();
    for (const PlanOpen& open : plan_.opens) slots_[open.slot] = {open.sampling, {}, -1};
    size_t token = 0, page = 0;
    std::optional<uint32_t> bad_slot;
    for (const PlanRow& row : plan_.rows) {
      const auto ids = std::span(plan_.input_ids).subspan(token, row.num_tokens);
      if (std::ranges::count(ids, replica_->fail_token_.load()) > 0) bad_slot = row.slot;
      result.rows.push_back(
          RunRow(row, ids, std::span(plan_.new_pages).subspan(page, row.num_new_pages)));
      token += row.num_tokens;
      page += row.num_new_pages;
    }
    for (uint32_t closed : plan_.closes) slots_.erase(closed);
    if (rank_ != 0) return;
    if (bad_slot.has_value()) {
      result.code = static_cast<uint32_t>(absl::StatusCode::kDataLoss);
      result.message = "a token that fails";
      result.rows.assign(1, RowResult());
      result.rows[0].slot = *bad_slot;
    } else if (replica_->fail_steps_.load() > 0) {
      replica_->fail_steps_.fetch_sub(1);
      result.code = replica_->fail_code_.load();
      result.message = "injected";
      result.rows.clear();
    }
    if (!replica_->WaitWhileHeld(killed_)) return;
    result.end_ns = RealClock::Now();
    std::string frame;
    BuildStepResult(result, &frame);
    CHECK_OK(results->Write(frame, RealClock::Now() + 10 * kNsPerSecond));
    replica_->open_slots_.store(static_cast<uint32_t>(slots_.size()));
    replica_->steps_.fetch_add(1);
    ReplicaControl::Ring(&replica_->control_->doorbell);
  }

  int32_t* Kv(const SlotState& state, uint32_t position) {
    const uint32_t size = replica_->options_.page_size;
    CHECK(position / size < state.pages.size());
    return &kv_[static_cast<size_t>(state.pages[position / size]) * size + position % size];
  }

  RowResult RunRow(const PlanRow& row, std::span<const int32_t> ids,
                   std::span<const uint32_t> new_pages) {
    CHECK(slots_.count(row.slot) == 1);
    SlotState& state = slots_[row.slot];
    state.pages.insert(state.pages.end(), new_pages.begin(), new_pages.end());
    for (uint32_t i = 0; i < row.num_tokens; ++i) {
      if (ids[i] == kLastToken) CHECK(state.last_token >= 0);
      *Kv(state, row.start_pos + i) = ids[i] == kLastToken ? state.last_token : ids[i];
    }
    RowResult out;
    out.slot = row.slot;
    const uint32_t end = row.start_pos + row.num_tokens;
    const uint32_t vocab = replica_->options_.model.vocab_size;
    if (row.flags & kRowPromptLogprobs) {
      out.prompt_start = row.start_pos + 1;
      for (uint32_t p = row.start_pos + 1; p <= end; ++p) {
        const int32_t token = p < end ? ids[p - row.start_pos] : row.next_token;
        if (token >= 0)
          out.prompt_logprobs.push_back(
              Logprobs(token, p, state.sampling.num_prompt_logprobs, vocab));
      }
    }
    if (row.flags & kRowPoolMean) {
      CHECK(row.start_pos == state.num_pooled);  // no position is left out
      state.num_pooled = end;
    }
    if (row.flags & kRowEmbed) {
      std::vector<int32_t> tokens(end);
      for (uint32_t p = 0; p < end; ++p) tokens[p] = *Kv(state, p);
      out.embedding = FakeEmbedding(tokens, (row.flags & kRowPoolMean) != 0);
    }
    CHECK((row.flags & kRowVerify) == 0);  // no test of the loop has drafts
    if (row.flags & kRowSample) {
      std::vector<int32_t> tokens(end);
      for (uint32_t p = 0; p < end; ++p) tokens[p] = *Kv(state, p);
      out.token = FakeNextToken(replica_->options_.model, tokens, state.sampling);
      state.last_token = out.token;
      out.has_logprobs = state.sampling.num_logprobs != kNoLogprobs;
      if (out.has_logprobs)
        out.logprobs = Logprobs(out.token, end, state.sampling.num_logprobs, vocab);
    }
    return out;
  }

  FakeReplica* const replica_;
  const uint32_t rank_;
  std::atomic<bool> killed_{false};
  uint32_t epoch_ = 0;
  std::map<uint32_t, SlotState> slots_;
  std::vector<int32_t> kv_;
  StepPlan plan_;
  std::thread thread_;
};

FakeReplica::FakeReplica(const FakeReplicaOptions& options)
    : options_(options),
      control_(MakeControl(options.tp)),
      step_ring_(MakeRing("fake-steps", options.tp)),
      result_ring_(MakeRing("fake-results", 1)),
      ranks_(options.tp) {
  if (!options.start) return;
  for (uint32_t r = 0; r < options.tp; ++r) Restart(r);
}

FakeReplica::~FakeReplica() {
  for (auto& rank : ranks_) rank.reset();
}

void FakeReplica::Kill(uint32_t rank) {
  ranks_[rank].reset();
  ReplicaControl::SetState(&control_->workers[rank], ProcessState::kDead);
  ReplicaControl::Ring(&control_->doorbell);
}

void FakeReplica::Restart(uint32_t rank) { ranks_[rank] = std::make_unique<Rank>(this, rank); }

void FakeReplica::Hold(bool held) {
  {
    std::lock_guard lock(mutex_);
    held_ = held;
    hold_at_ = UINT64_MAX;
  }
  released_.notify_all();
}

void FakeReplica::HoldAfter(uint64_t steps) {
  std::lock_guard lock(mutex_);
  held_ = false;
  hold_at_ = steps_.load() + steps;
  released_.notify_all();
}

bool FakeReplica::WaitWhileHeld(const std::atomic<bool>& killed) {
  std::unique_lock lock(mutex_);
  while ((held_ || steps_.load() >= hold_at_) && !killed.load())
    released_.wait_for(lock, std::chrono::milliseconds(20));
  return !killed.load();
}

}  // namespace flotilla
