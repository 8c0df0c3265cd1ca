#include "scheduler_proc/front/keyed_results.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler_proc/exchange/errors.h"

namespace flotilla {
namespace {

constexpr size_t kHashDigits = 64;
constexpr size_t kRecordBytes = 1024;  // of a record without output

prometheus::Counter& Requests(prometheus::Registry* registry, prometheus::Labels labels,
                              const char* outcome) {
  labels.emplace("outcome", outcome);
  return AddCounter(registry, {"flotilla_scheduler_keyed_requests_total",
                               "Requests with an idempotency key, by what became of them", labels});
}

// It ended by itself: to ask again gives the same.
bool IsWhole(const v1::Delta& last) {
  if (last.has_error() || last.choices_size() == 0) return false;
  const v1::FinishReason reason = last.choices(0).finish_reason();
  return reason != v1::FINISH_REASON_ABORT && reason != v1::FINISH_REASON_DEADLINE &&
         reason != v1::FINISH_REASON_ERROR;
}

}  // namespace

KeyedMetrics::KeyedMetrics(prometheus::Registry* registry, const prometheus::Labels& labels)
    : begun(Requests(registry, labels, "begun")),
      attached_running(Requests(registry, labels, "attached_running")),
      attached_finished(Requests(registry, labels, "attached_finished")),
      conflicts(Requests(registry, labels, "conflict")),
      alone(Requests(registry, labels, "alone")),
      records(
          AddGauge(registry, {"flotilla_scheduler_keyed_results",
                              "Requests with an idempotency key that run or are kept", labels})),
      bytes(AddGauge(registry, {"flotilla_scheduler_keyed_result_bytes",
                                "Memory of what they have given", labels})) {}

struct KeyedResults::Attached {
  Consumer consumer;
  bool began = false;  // the request: its timing is of this one's time
  bool waits = false;  // it has more than there is yet
};

struct KeyedResults::Record final : OutputSink, std::enable_shared_from_this<Record> {
  Record(KeyedResults* results, const v1::Keyed& keyed, ReqId req, const Consumer& consumer,
         const v1::Delta& before)
      : owner(results), key(keyed.key()), digest(keyed.digest()), id(req) {
    const bool told = before.choices_size() > 0;
    first_text = told ? 0 : consumer.text_bytes;
    log.emplace(/*stream_id=*/0, told ? 0 : consumer.first_token);
    if (!told) return;
    log->Append(v1::Delta(before));
  }

  size_t KeptBytes() const { return kRecordBytes + log->kept_bytes(); }

  // False: it has not all yet that the consumer has.
  bool RewindFor(const Consumer& consumer, StreamLog* copy) const {
    return copy->RewindTo(consumer.first_token,
                          consumer.text_bytes - std::min(first_text, consumer.text_bytes));
  }

  bool Append(uint64_t, v1::Delta&& piece) override {
    return owner->OnPiece(shared_from_this(), std::move(piece));
  }
  void Flush() override { owner->OnFlush(this); }

  KeyedResults* const owner;
  const std::string key, digest;
  const ReqId id;
  uint64_t first_text = 0;       // bytes of text before what the log has
  bool kept = true;              // it is in records_
  bool ended = false;            // its last delta has come
  int64_t ended_ns = 0;          // when
  size_t bytes = 0;              // counted in bytes_
  std::optional<StreamLog> log;  // of a kept one
  std::vector<Attached> attached;
};

StatusOr<KeyedResults::Place> KeyedResults::AttachOrBegin(const v1::Keyed& keyed, ReqId id,
                                                          const Consumer& consumer,
                                                          const v1::Delta& before) {
  if (keyed.key().size() != kHashDigits || keyed.digest().size() != kHashDigits)
    return absl::InvalidArgumentError(
        StrCat("keyed: key and digest are ", kHashDigits, " hex digits each"));
  std::lock_guard lock(mutex_);
  ExpireLocked(clock_->NowNs());
  if (const auto found = records_.find(keyed.key()); found != records_.end()) {
    StatusOr<Place> place = AttachLocked(found->second, keyed, consumer);
    if (!absl::IsNotFound(place.status())) return place;
    metrics_.alone.Increment();
    return Place{consumer.sink, id, /*shared=*/false};
  }
  auto record = std::make_shared<Record>(this, keyed, id, consumer, before);
  record->attached.push_back({consumer, /*began=*/true});
  records_.emplace(keyed.key(), record);
  metrics_.begun.Increment();
  MakeRoomLocked(record);
  return Place{std::move(record), id};
}

StatusOr<KeyedResults::Place> KeyedResults::Attach(const v1::Keyed& keyed,
                                                   const Consumer& consumer) {
  std::lock_guard lock(mutex_);
  const auto found = records_.find(keyed.key());
  if (found == records_.end()) return absl::NotFoundError("keyed: there is no such request");
  return AttachLocked(found->second, keyed, consumer);
}

StatusOr<KeyedResults::Place> KeyedResults::AttachLocked(const std::shared_ptr<Record>& record,
                                                         const v1::Keyed& keyed,
                                                         const Consumer& consumer) {
  if (record->digest != keyed.digest()) {
    metrics_.conflicts.Increment();
    return absl::AlreadyExistsError(
        "idempotency_key: it was used for another request; a key stands for one request");
  }
  StreamLog log = *record->log;
  const bool has_all = record->RewindFor(consumer, &log);
  if (consumer.first_token < log.first_token() || (record->ended && !has_all))
    return absl::NotFoundError("keyed: it has not what the consumer has");
  if (has_all && log.unsent_bytes() > consumer.room) {
    return absl::AbortedError(
        "idempotency_key: earlier repeats are still being answered; ask again soon");
  }
  if (has_all) CatchUp(std::move(log), consumer);
  (record->ended ? metrics_.attached_finished : metrics_.attached_running).Increment();
  if (!record->ended) record->attached.push_back({consumer, /*began=*/false, !has_all});
  consumer.sink->Flush();
  return Place{nullptr, record->ended ? 0 : record->id};
}

// Piece by piece, so that the consumer's own log knows the text of each.
void KeyedResults::CatchUp(StreamLog log, const Consumer& consumer) {
  while (log.HasUnsent()) {
    v1::Delta piece;
    log.Take(/*max_bytes=*/1, &piece);
    piece.clear_timing();
    piece.set_repeats(true);
    consumer.sink->Append(consumer.stream, std::move(piece));
  }
}

bool KeyedResults::Contains(const std::string& key) {
  std::lock_guard lock(mutex_);
  ExpireLocked(clock_->NowNs());
  return records_.contains(key);
}

bool KeyedResults::OnPiece(const std::shared_ptr<Record>& record, v1::Delta&& piece) {
  std::lock_guard lock(mutex_);
  std::erase_if(record->attached, [&piece](const Attached& each) {
    if (each.waits) return false;
    v1::Delta copy = piece;
    if (!each.began) {
      copy.clear_timing();
      copy.set_repeats(true);
    }
    return !each.consumer.sink->Append(each.consumer.stream, std::move(copy));
  });
  record->ended = record->ended || piece.last();
  if (record->kept) KeepLocked(record, std::move(piece));
  ServeWaitingLocked(record.get());
  return record->kept || !record->attached.empty();
}

// Those that can't be served any more ask again, and another replica may have what they need.
void KeyedResults::ServeWaitingLocked(Record* record) {
  std::erase_if(record->attached, [record](Attached& each) {
    if (!each.waits) return false;
    const Consumer& consumer = each.consumer;
    if (record->kept) {
      if (!record->log->Has(consumer.first_token, 0) && !record->ended) return false;
      StreamLog log = *record->log;
      if (record->RewindFor(consumer, &log)) {
        CatchUp(std::move(log), consumer);
        each.waits = false;
        return false;
      }
      if (!record->ended) return false;
    }
    consumer.sink->Append(consumer.stream,
                          RefusalDelta(absl::UnavailableError(
                              "the request that this one repeats has ended; try again")));
    consumer.sink->Flush();
    return true;
  });
}

void KeyedResults::KeepLocked(const std::shared_ptr<Record>& record, v1::Delta&& piece) {
  if (piece.large_result_id() != 0 || (piece.last() && !IsWhole(piece)))
    return ForgetLocked(record);
  if (piece.last()) {
    record->ended_ns = clock_->NowNs();
    ended_.push_back(record);
  }
  record->log->Append(std::move(piece));
  MakeRoomLocked(record);
}

void KeyedResults::OnFlush(Record* record) {
  std::lock_guard lock(mutex_);
  for (const Attached& each : record->attached) each.consumer.sink->Flush();
  if (record->ended) record->attached.clear();
}

int64_t KeyedResults::Tick(int64_t now_ns) {
  std::lock_guard lock(mutex_);
  ExpireLocked(now_ns);
  return ended_.empty() ? INT64_MAX : ended_.front()->ended_ns + options_.ttl_ns;
}

void KeyedResults::ExpireLocked(int64_t now_ns) {
  while (!ended_.empty() && ended_.front()->ended_ns + options_.ttl_ns <= now_ns)
    ForgetLocked(ended_.front());
}

void KeyedResults::MakeRoomLocked(const std::shared_ptr<Record>& growing) {
  const size_t bytes = growing->KeptBytes();
  bytes_ += bytes - std::exchange(growing->bytes, bytes);
  while (bytes_ > options_.max_bytes && !ended_.empty()) ForgetLocked(ended_.front());
  if (bytes_ > options_.max_bytes) ForgetLocked(growing);
  TellLocked();
}

void KeyedResults::ForgetLocked(const std::shared_ptr<Record>& record) {
  if (!std::exchange(record->kept, false)) return;
  // The argument may be ended_'s own. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const std::shared_ptr<Record> alive = record;
  bytes_ -= alive->bytes;
  std::erase(ended_, alive);
  records_.erase(alive->key);
  alive->log.reset();
  TellLocked();
}

void KeyedResults::TellLocked() {
  metrics_.records.Set(static_cast<double>(records_.size()));
  metrics_.bytes.Set(static_cast<double>(bytes_));
}

}  // namespace flotilla
