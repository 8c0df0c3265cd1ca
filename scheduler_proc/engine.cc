#include "scheduler_proc/engine.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "common/base/log.h"
#include "common/text/prompt_bytes.h"
#include "shm/ring_metrics.h"

namespace flotilla {
namespace {

v1::GetModelInfoResponse StaticInfo(const EngineOptions& options, const Engine::Inputs& inputs) {
  v1::GetModelInfoResponse info;
  info.set_model(options.model_name);
  info.set_model_digest(inputs.model_digest);
  info.set_max_model_len(options.core.context_length);
  info.set_vocab_size(options.core.vocab_size);
  info.set_hidden_size(options.hidden_size);
  info.set_page_size(options.core.page_size);
  info.set_created(static_cast<int64_t>(std::time(nullptr)));
  info.set_max_running_requests(options.core.max_running_requests);
  info.set_max_queued_requests(options.core.max_queued_requests);
  info.set_max_grammar_bytes(options.max_grammar_bytes);
  info.set_structural_tags(true);
  return info;
}

EpochManager::Options EpochOptions(const EngineOptions& options) {
  EpochManager::Options epochs;
  epochs.tp_size = options.tp_size;
  return epochs;
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::Start(const EngineOptions& options, Inputs inputs) {
  ASSIGN_OR_RETURN(RingWriter steps, RingWriter::Attach(inputs.step_ring));
  ASSIGN_OR_RETURN(RingReader results, RingReader::Attach(inputs.result_ring, 0, WaitPolicy{}));
  ASSIGN_OR_RETURN(auto detok,
                   DetokLink::Bind(options.detok_request_address, options.detok_reply_address));
  std::unique_ptr<Engine> engine(new Engine(options, std::move(inputs), std::move(steps),
                                            std::move(results), std::move(detok)));
  ServiceDeps deps;
  deps.front = &engine->front_;
  deps.hub = &engine->hub_;
  deps.info = &engine->info_;
  deps.load = &engine->load_;
  deps.large_results = &engine->large_results_;
  deps.keyed = &engine->keyed_;
  deps.clock = engine->inputs_.clock;
  deps.on_drain = [e = engine.get()] { e->BeginDrain(); };
  deps.channel = options.channel;
  deps.max_call_unsent_bytes = options.max_call_unsent_bytes;
  engine->server_ = std::make_unique<EngineServer>(deps);
  RETURN_IF_ERROR(
      engine->server_->Listen(options.listen, engine->inputs_.tls, options.keepalive_ms));
  engine->output_side_->Start();
  engine->loop_thread_ = std::thread([e = engine.get()] { e->RunLoop(); });
  return engine;
}

Engine::Engine(const EngineOptions& options, Inputs inputs, RingWriter steps, RingReader results,
               std::unique_ptr<DetokLink> detok)
    : options_(options),
      inputs_(std::move(inputs)),
      max_token_bytes_(MaxTokenBytes(*inputs_.tokenizer)),
      port_(std::move(steps), inputs_.collective, inputs_.clock,
            &AddGauge(inputs_.registry, RingFillRatioSpec("step"))),
      results_(std::move(results)),
      detok_(std::move(detok)),
      cache_(options.core.page_size),
      inbox_(options.core.max_queued_requests + options.core.max_running_requests,
             [control = inputs_.control] { ReplicaControl::Ring(&control->doorbell); }),
      large_results_(inputs_.clock, options.max_large_result_bytes),
      keyed_(options.keyed, inputs_.clock,
             KeyedMetrics(inputs_.registry,
                          {{"model", options.model_name}, {"replica", options.replica_id}})),
      front_({&inbox_, &load_, inputs_.tokenizer, inputs_.chat_format, inputs_.clock,
              [this](absl::StatusCode code) { metrics_.OnRejected(code); }, inputs_.grammars}),
      hub_(options.channel,
           {inputs_.clock, [this](v1::Load* load) { load_.Fill(load); },
            [this](ReqId id) { front_.Abort(id, Finish::kAbort); }, &cache_},
           [this] { outputs_.Wake(); }),
      info_(options.replica_id, StaticInfo(options, inputs_), std::move(inputs_.tokenizer_file)),
      metrics_({options.model_name, options.replica_id, options.decode_log_interval,
                options.core.page_size},
               inputs_.registry),
      epochs_(EpochOptions(options), inputs_.control, &port_) {
  OutputSide::Deps output;
  output.assembler = {inputs_.tokenizer, inputs_.clock,
                      detok_.get(),      &inbox_,
                      &large_results_,   [this](ReqId id) { front_.OnFinished(id); }};
  output.queue = &outputs_;
  output.tick = [this](int64_t now_ns) { return std::min(hub_.Tick(now_ns), keyed_.Tick(now_ns)); };
  output_side_ = std::make_unique<OutputSide>(std::move(output));
  if (inputs_.flight != nullptr) flight_ = *FlightRingWriter::Attach(inputs_.flight);
  SchedulerLoop::Options loop;
  loop.core = options.core;
  loop.step_timeout_ns = options.step_timeout_ns;
  loop_ = std::make_unique<SchedulerLoop>(
      loop,
      SchedulerLoop::Deps{inputs_.clock, inputs_.control, &epochs_, &port_, &results_, &inbox_,
                          &outputs_, &load_, &metrics_, flight_.has_value() ? &*flight_ : nullptr,
                          &cache_, [this](uint32_t num_pages) { return OnServing(num_pages); },
                          [this] { metrics_.OnServing(false, epochs_.num_pages()); },
                          [this](bool recovering) {
                            hub_.TellLoad();
                            TellServing(!recovering);
                          }});
}

Engine::~Engine() { Stop(); }

void Engine::RunLoop() {
  const Status status = loop_->Run();
  if (status.ok()) return;
  Log().error("scheduler loop ended {}", Kv("error", std::string(status.message())));
  if (inputs_.on_fatal) inputs_.on_fatal(status);
}

// On the loop's thread.
Status Engine::OnServing(uint32_t num_pages) {
  RETURN_IF_ERROR(TakeRequests(num_pages));  // before anyone is told
  metrics_.OnServing(true, num_pages);
  return OkStatus();
}

void Engine::TellServing(bool serving) {
  std::lock_guard lock(mutex_);
  if (!draining_) {
    ReplicaControl::SetState(&inputs_.control->scheduler,
                             serving ? ProcessState::kReady : ProcessState::kWarmup);
    server_->SetServing(serving);
    ReplicaControl::Ring(&inputs_.control->launcher_bell);
  }
  if (!serving) return;
  ready_ = true;
  ready_changed_.notify_all();
}

Status Engine::TakeRequests(uint32_t num_pages) {
  const uint64_t in_cache = static_cast<uint64_t>(num_pages) * options_.core.page_size;
  const uint32_t context =
      static_cast<uint32_t>(std::min<uint64_t>(options_.core.context_length, in_cache));
  const uint64_t probe = inputs_.control->reports[0].probe_hash.load(std::memory_order_acquire);
  const std::string backend = ReplicaControl::BackendName(inputs_.control->reports[0]);
  const std::string fingerprint = Fingerprint(inputs_.model_digest, probe, backend);
  // A rank that came back opened the model's files as they are now. Streams that go on with others
  // would change silently; a new start of the whole replica has all of it from one model again.
  if (!fingerprint_.empty() && fingerprint != fingerprint_)
    return absl::FailedPreconditionError(
        StrCat("the ranks no longer compute what they did: ", fingerprint, " instead of ",
               fingerprint_, "; have the model's files been replaced?"));
  fingerprint_ = fingerprint;
  v1::GetModelInfoResponse measured;
  measured.set_fingerprint(fingerprint);
  measured.set_backend(backend);
  measured.set_total_pages(num_pages);
  measured.set_max_model_len(context);
  info_.Complete(measured);
  front_.SetServing({options_.model_name, options_.core.vocab_size, context,
                     options_.max_grammar_bytes, MaxPromptBytes(context, max_token_bytes_)});
  return OkStatus();
}

bool Engine::WaitReady(int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const int64_t left = std::max<int64_t>(0, deadline_ns - inputs_.clock->NowNs());
  return ready_changed_.wait_for(lock, std::chrono::nanoseconds(left), [&] { return ready_; });
}

void Engine::BeginDrain() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(draining_, true)) return;
    // Whoever hears of it finds it so.
    front_.SetDraining();
    ReplicaControl::SetState(&inputs_.control->scheduler, ProcessState::kStopping);
    server_->SetServing(false);
  }
  Log().info("draining {}", Kv("live", front_.live()));
  v1::EngineFrame goodbye;
  goodbye.mutable_goodbye()->set_reason("the replica is draining");
  goodbye.mutable_goodbye()->set_draining(true);
  hub_.Broadcast(goodbye);
}

void Engine::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (server_ != nullptr) server_->Shutdown(inputs_.clock->NowNs() + kNsPerSecond);
  if (inputs_.grammars != nullptr) inputs_.grammars->Stop();  // it calls front_
  loop_->Stop();
  if (loop_thread_.joinable()) loop_thread_.join();
  output_side_->Stop();
}

}  // namespace flotilla
