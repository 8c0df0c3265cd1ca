#include "scheduler_proc/grammar/grammar_compiler.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/metrics.h"

namespace flotilla {
namespace {

// Of the time for a grammar: what reading the result and answering may take.
constexpr int64_t kReserveNs = 400 * kNsPerMs;
// Less is not worth a try.
constexpr int64_t kLeastNs = 50 * kNsPerMs;
// What an entry takes beside its text and its grammar.
constexpr size_t kEntryBytes = 512;

Status Busy() {
  return absl::ResourceExhaustedError(
      "structured: too many grammars wait to be compiled; try again later");
}

// What takes so long most often.
std::string_view WayOut(std::string_view text) {
  const bool counts =
      text.find("\"maxLength\"") != text.npos || text.find("\"maxItems\"") != text.npos;
  return counts ? "; leave large 'maxLength' and 'maxItems' out, and say 'max_tokens'" : "";
}

const std::vector<double> kSeconds = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5};

prometheus::Counter& Compilations(prometheus::Registry* registry, const char* result) {
  return AddCounter(registry, {"flotilla_scheduler_grammar_compilations_total",
                               "Grammars that were not in the cache, by what came of them.",
                               {{"result", result}}});
}

}  // namespace

GrammarMetrics::GrammarMetrics(prometheus::Registry* registry)
    : hits(AddCounter(registry, {"flotilla_scheduler_grammar_cache_hits_total",
                                 "Grammars found in the cache."})),
      compiled(Compilations(registry, "ok")),
      invalid(Compilations(registry, "invalid")),
      timeout(Compilations(registry, "timeout")),
      busy(Compilations(registry, "busy")),
      seconds(AddHistogram(registry,
                           {"flotilla_scheduler_grammar_compile_seconds",
                            "Compiling a grammar and reading the result."},
                           kSeconds)),
      cache_bytes(AddGauge(
          registry, {"flotilla_scheduler_grammar_cache_bytes", "Of the compiled grammars kept."})) {
}

StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Start(const Options& options,
                                                                  const VocabularyTokens& tokens,
                                                                  const Clock* clock,
                                                                  prometheus::Registry* registry) {
  std::unique_ptr<GrammarCompiler> compiler(new GrammarCompiler(options, tokens, clock, registry));
  ASSIGN_OR_RETURN(compiler->sandbox_, CompileSandbox::Start(options.sandbox, tokens));
  for (uint32_t i = 0; i < options.threads; ++i)
    compiler->threads_.emplace_back([c = compiler.get()] { c->RunThread(); });
  return compiler;
}

GrammarCompiler::GrammarCompiler(const Options& options, const VocabularyTokens& tokens,
                                 const Clock* clock, prometheus::Registry* registry)
    : options_(options), clock_(clock), vocabulary_(tokens), metrics_(registry) {}

GrammarCompiler::~GrammarCompiler() { Stop(); }

void GrammarCompiler::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  std::map<Key, std::vector<Waiter>> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
  }
  for (auto& [key, waiters] : waiting) {
    for (Waiter& waiter : waiters) waiter.done(absl::UnavailableError("the replica is stopping"));
  }
}

void GrammarCompiler::Compile(const GrammarSpec& spec, For whom, Done done) {
  Result answer = absl::UnavailableError("the replica is stopping");
  {
    std::lock_guard lock(mutex_);
    const Key key(spec.kind, spec.text);
    const Entry* entry = FindLocked(key, whom);
    const bool is_new = whom == For::kNewRequest;
    if (entry == nullptr && !stop_ && (num_waiting_ < options_.max_waiting || !is_new)) {
      ++num_waiting_;
      std::vector<Waiter>& waiters = waiting_[key];
      waiters.push_back({std::move(done), whom});
      if (waiters.size() == 1 || (!is_new && TakeFromQueueLocked(key))) QueueLocked(spec, whom);
      return;
    }
    if (entry != nullptr) {
      metrics_.hits.Increment();
      answer = entry->result;
    } else if (!stop_) {
      metrics_.busy.Increment();
      answer = Busy();
    }
  }
  done(std::move(answer));
}

void GrammarCompiler::QueueLocked(const GrammarSpec& spec, For whom) {
  const int64_t now_ns = clock_->NowNs(), timeout_ns = int64_t{options_.timeout_ms} * kNsPerMs;
  if (whom == For::kNewRequest) {
    queue_.push_back({spec, whom, now_ns + timeout_ns});
  } else {
    queue_.push_front({spec, whom, now_ns + kBegunElsewhereTimes * timeout_ns});
  }
  changed_.notify_one();
}

bool GrammarCompiler::TakeFromQueueLocked(const Key& key) {
  return std::erase_if(queue_, [&](const Job& job) {
           return job.whom == For::kNewRequest && job.spec.kind == key.first &&
                  job.spec.text == key.second;
         }) > 0;
}

void GrammarCompiler::RunThread() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    Finish(job, CompileNow(job));
    lock.lock();
  }
}

GrammarCompiler::Entry GrammarCompiler::CompileNow(const Job& job) {
  const int64_t begin_ns = clock_->NowNs();
  Entry entry;
  entry.result = Busy();
  entry.expires_ns = 0;
  const int64_t reserve_ns = std::min(kReserveNs, int64_t{options_.timeout_ms} * kNsPerMs / 4);
  const int64_t left_ns = job.deadline_ns - begin_ns - reserve_ns;
  if (left_ns < kLeastNs) {
    metrics_.busy.Increment();
    return entry;
  }
  const auto time_ms = static_cast<uint32_t>(left_ns / kNsPerMs);
  const StatusOr<std::string> compiled = sandbox_->Compile(job.spec, time_ms);
  entry.result = compiled.ok() ? GrammarFromJson(*compiled, vocabulary_) : compiled.status();
  entry.bytes = compiled.ok() ? compiled->size() : 0;
  Status status = entry.result.status();
  if (status.ok()) {
    metrics_.compiled.Increment();
  } else if (absl::IsDeadlineExceeded(status)) {
    metrics_.timeout.Increment();
    status = absl::InvalidArgumentError(StrCat("too complex: compiling it takes more than ",
                                               time_ms, " ms", WayOut(job.spec.text)));
  } else if (absl::IsUnavailable(status)) {
    metrics_.busy.Increment();  // the machine's
  } else {
    metrics_.invalid.Increment();
    if (absl::IsResourceExhausted(status))
      status = absl::InvalidArgumentError(StrCat("too complex: ", status.message()));
  }
  // A text is refused for good. A lack of time or memory may have been the machine's, and a sandbox
  // that could not be had says nothing of the text.
  const Status& why = entry.result.status();
  const bool lack = absl::IsDeadlineExceeded(why) || absl::IsResourceExhausted(why);
  if (status.ok() || absl::IsInvalidArgument(why)) entry.expires_ns = INT64_MAX;
  if (lack) entry.expires_ns = clock_->NowNs() + kRefusalNs;
  if (!status.ok()) entry.result = Annotate(status, GrammarField(job.spec.kind));
  metrics_.seconds.Observe(static_cast<double>(clock_->NowNs() - begin_ns) * 1e-9);
  return entry;
}

void GrammarCompiler::Finish(const Job& job, Entry entry) {
  const Result result = entry.result;
  std::vector<Waiter> told;
  {
    std::lock_guard lock(mutex_);
    const Key key(job.spec.kind, job.spec.text);
    std::vector<Waiter>& waiters = waiting_[key];
    const bool is_lack = entry.expires_ns != INT64_MAX;
    const auto keep = [&](const Waiter& waiter) {
      return is_lack && job.whom == For::kNewRequest && waiter.whom == For::kBegunElsewhere;
    };
    const auto kept = std::stable_partition(waiters.begin(), waiters.end(), keep);
    told.assign(std::make_move_iterator(kept), std::make_move_iterator(waiters.end()));
    waiters.erase(kept, waiters.end());
    num_waiting_ -= told.size();
    if (!waiters.empty()) {
      QueueLocked(job.spec, For::kBegunElsewhere);
    } else {
      waiting_.erase(key);
      StoreLocked(key, std::move(entry));
    }
  }
  for (Waiter& waiter : told) waiter.done(result);
}

const GrammarCompiler::Entry* GrammarCompiler::FindLocked(const Key& key, For whom) {
  const auto it = cache_.find(key);
  if (it == cache_.end()) return nullptr;
  const bool is_lack = it->second.expires_ns != INT64_MAX;
  if (it->second.expires_ns <= clock_->NowNs() || (is_lack && whom == For::kBegunElsewhere)) {
    EvictLocked(it);
    return nullptr;
  }
  ages_.splice(ages_.begin(), ages_, it->second.age);
  return &it->second;
}

void GrammarCompiler::StoreLocked(const Key& key, Entry entry) {
  entry.bytes += key.second.size() + kEntryBytes;
  if (entry.expires_ns <= clock_->NowNs() || entry.bytes > options_.cache_bytes) return;
  ages_.push_front(key);
  entry.age = ages_.begin();
  cache_bytes_ += entry.bytes;
  cache_.emplace(key, std::move(entry));
  while (cache_bytes_ > options_.cache_bytes) EvictLocked(cache_.find(ages_.back()));
  metrics_.cache_bytes.Set(static_cast<double>(cache_bytes_));
}

void GrammarCompiler::EvictLocked(std::map<Key, Entry>::iterator it) {
  cache_bytes_ -= it->second.bytes;
  ages_.erase(it->second.age);
  cache_.erase(it);
  metrics_.cache_bytes.Set(static_cast<double>(cache_bytes_));
}

}  // namespace flotilla
