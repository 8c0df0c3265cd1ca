// The toy model of FakeEngineService.
#include <utility>

#include "common/text/incremental_detokenizer.h"
#include "tests/fakes/fake_engine_service.h"

namespace flotilla {
namespace {

constexpr int kPromptLogprobsPerPiece = 4;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash * 0xbf58476d1ce4e5b9ull;
}

}  // namespace

std::vector<int32_t> FakeEngineService::AnswerIds(const v1::GenerateRequest& request) const {
  const auto count = static_cast<size_t>(request.stopping().max_tokens());
  const uint32_t vocab = GetTestModel().tokenizer->vocab_size();
  uint64_t hash = request.sampling().seed();
  for (int32_t id : request.token_ids().ids()) hash = Mix(hash, static_cast<uint64_t>(id));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    if (!script_.empty()) {
      ids.push_back(script_[i % script_.size()]);
      continue;
    }
    hash = Mix(hash, i);
    ids.push_back(static_cast<int32_t>(1000 + hash % (vocab - 1000)));
  }
  return ids;
}

void FakeEngineService::EndLiveByDeadline() {
  std::lock_guard<std::mutex> lock(mutex_);
  v1::EngineFrame frame;
  for (const auto& [stream_id, live] : live_) {
    v1::Delta* delta = frame.mutable_step()->add_deltas();
    delta->set_stream_id(stream_id);
    delta->set_last(true);
    delta->add_choices()->set_finish_reason(v1::FINISH_REASON_DEADLINE);
    delta->mutable_usage()->set_prompt_tokens(static_cast<int32_t>(live.prompt_tokens));
    delta->mutable_usage()->set_completion_tokens(static_cast<int32_t>(live.next));
  }
  live_.clear();
  stream_->Write(frame);
}

v1::TokenLogprobs FakeEngineService::Logprobs(int32_t id, int count) const {
  v1::TokenLogprobs entry;
  entry.set_token_id(id);
  entry.set_logprob(-0.5f - static_cast<float>(id % 100) / 128.0f);
  entry.set_rank(2);
  for (int i = 0; i < count; ++i) {
    v1::TopLogprob* top = entry.add_top();
    top->set_token_id(i == 1 ? id : 2000 + i);  // rank 2 is the token itself
    top->set_logprob(i == 1 ? entry.logprob() : -0.25f * static_cast<float>(i + 1));
  }
  return entry;
}

void FakeEngineService::AddPromptLogprobs(const v1::Submit& submit,
                                          std::vector<v1::Delta>* pieces) {
  const v1::GenerateRequest& request = submit.request();
  if (!request.output().has_prompt_logprobs()) return;
  const auto& ids = request.token_ids().ids();
  std::vector<v1::TokenLogprobs> entries;
  for (int i = 1; i < ids.size(); ++i)
    entries.push_back(Logprobs(ids.at(i), request.output().prompt_logprobs()));
  if (entries.size() > options_.large_result_over) {
    v1::Delta delta;
    delta.set_large_result_id(submit.stream_id() + 7000);
    large_[delta.large_result_id()] = std::move(entries);
    pieces->push_back(std::move(delta));
    return;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i % kPromptLogprobsPerPiece == 0) pieces->emplace_back();
    *pieces->back().add_prompt_logprobs() = entries[i];
  }
}

std::vector<float> FakeEngineService::Embedding(std::span<const int32_t> prompt, bool mean) {
  uint64_t hash = mean ? 1 : 2;
  for (int32_t id : prompt) hash = Mix(hash, static_cast<uint64_t>(id));
  std::vector<float> out;
  for (uint32_t i = 0; i < kHiddenSize; ++i)
    out.push_back(static_cast<float>(Mix(hash, i) % 4096) / 1024.0f - 2);
  return out;
}

v1::Delta FakeEngineService::MakeEmbedding(const v1::Submit& submit) {
  const auto& ids = submit.request().token_ids().ids();
  const bool mean = submit.embed().pooling() == v1::EmbedRequest::POOLING_MEAN;
  v1::Delta delta;
  delta.set_stream_id(submit.stream_id());
  for (float value : Embedding({ids.data(), static_cast<size_t>(ids.size())}, mean))
    delta.add_embedding(value);
  delta.add_choices()->set_finish_reason(v1::FINISH_REASON_STOP);
  delta.mutable_usage()->set_prompt_tokens(ids.size());
  delta.set_last(true);
  return delta;
}

size_t FakeEngineService::ResumedTokens(const v1::Submit& submit) {
  return submit.resume_size() == 0 ? 0 : static_cast<size_t>(submit.resume(0).output_ids_size());
}

v1::Timing FakeEngineService::Timing() {
  v1::Timing timing;
  timing.set_arrival_ns(1000);
  timing.set_queued_ns(3000);
  timing.set_first_scheduled_ns(6000);
  timing.set_first_token_ns(10'000);
  timing.set_finished_ns(15'000);
  timing.set_wait_reason("next_step");
  return timing;
}

std::vector<v1::Delta> FakeEngineService::MakePieces(const v1::Submit& submit) {
  if (submit.has_embed()) return {MakeEmbedding(submit)};
  const v1::GenerateRequest& request = submit.request();
  std::vector<v1::Delta> pieces;
  AddPromptLogprobs(submit, &pieces);
  IncrementalDetokenizer text(GetTestModel().tokenizer.get(),
                              request.output().skip_special_tokens());
  const std::vector<int32_t> ids = AnswerIds(request);
  const size_t resumed = ResumedTokens(submit);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string piece = text.Push(ids[i]);
    if (i < resumed) continue;  // the client has it
    v1::ChoiceDelta* choice = pieces.emplace_back().add_choices();
    choice->set_text(std::move(piece));
    choice->add_token_ids(ids[i]);
    if (request.output().has_logprobs())
      *choice->add_logprobs() = Logprobs(ids[i], request.output().logprobs());
  }
  v1::Delta& last = pieces.back();
  v1::ChoiceDelta* choice = last.mutable_choices(0);
  choice->mutable_text()->append(text.Finish());
  choice->set_finish_reason(v1::FINISH_REASON_LENGTH);
  last.mutable_usage()->set_prompt_tokens(request.token_ids().ids_size());
  last.mutable_usage()->set_completion_tokens(static_cast<int32_t>(ids.size()));
  last.mutable_usage()->set_cached_tokens(request.token_ids().ids_size() / 2);
  last.set_last(true);
  if (request.output().return_timing()) *last.mutable_timing() = Timing();
  for (v1::Delta& piece : pieces) piece.set_stream_id(submit.stream_id());
  return pieces;
}

v1::Load FakeEngineService::MakeLoad() const {
  v1::Load load;
  uint64_t queued = extra_load_, running = 0;
  for (const auto& [id, live] : live_) {
    if (live.next >= live.pieces.size()) continue;
    (live.next == 0 ? queued : running) += live.prompt_tokens;
    if (live.next == 0)
      load.set_waiting_requests(load.waiting_requests() + 1);
    else
      load.set_running_requests(load.running_requests() + 1);
  }
  load.set_total_pages(kTotalPages);
  load.set_free_pages(kTotalPages - load.running_requests());
  load.set_queued_tokens(queued);
  load.set_running_tokens(running);
  load.set_draining(draining_);
  load.set_recovering(recovering_);
  return load;
}

}  // namespace flotilla
