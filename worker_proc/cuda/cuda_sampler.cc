#include "worker_proc/cuda/cuda_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "worker_proc/runner/logits_scan.h"
#include "worker_proc/runner/philox.h"
#include "worker_proc/runner/weight_numbers.h"

namespace flotilla::cuda {
namespace {

constexpr uint32_t kLeastListRoom = 64 * 1024;

}  // namespace

StatusOr<std::unique_ptr<CudaSampler>> CudaSampler::Create(Device* device, LastTokens* last_tokens,
                                                           uint32_t max_rows, uint32_t vocab,
                                                           std::span<const int32_t> eos_ids) {
  static_assert(kMaxLogprobs <= kMaxSampleTop);
  CHECK(vocab <= kMaxSampleVocab);
  std::unique_ptr<CudaSampler> sampler(new CudaSampler(device, last_tokens, vocab));
  RETURN_IF_ERROR(sampler->Allocate(max_rows, eos_ids));
  RETURN_IF_ERROR(sampler->RunEachKernel());
  return sampler;
}

Status CudaSampler::RunEachKernel() {
  const std::vector<float> zeros(vocab_);
  ASSIGN_OR_RETURN(const DeviceBuffer logits, device_.Allocate(zeros.size() * sizeof(float)));
  device_.UploadAll(zeros, logits);
  CudaTensor tensor{logits.data(), Element::kFloat32};
  const LogitBias bias = {0, 1};
  SamplingParams greedy, drawn, cut;
  greedy.temperature = 0;
  cut.top_k = 1;
  PositionLogprobs logprobs;
  for (const SampleQuery& query :
       {SampleQuery{.input = {.params = greedy, .logit_bias = {&bias, 1}}},
        SampleQuery{.input = {.params = drawn}}, SampleQuery{.input = {.params = cut}},
        SampleQuery{.input = {.params = greedy}, .num_top = 1, .logprobs = &logprobs}}) {
    int32_t token = -1;
    RETURN_IF_ERROR(Sample({&tensor, 1, vocab_}, {&query, 1}, {&token, 1}));
  }
  return OkStatus();
}

Status CudaSampler::Allocate(uint32_t max_rows, std::span<const int32_t> eos_ids) {
  for (const int32_t id : eos_ids) {
    if (id >= 0 && static_cast<uint32_t>(id) < vocab_) eos_ids_.push_back(id);
  }
  // A sequence has each token once.
  list_room_ = std::max({kLeastListRoom, vocab_, kMaxLogitBias});
  const auto allocate = [this](uint64_t bytes) {
    bytes_ += bytes;
    return device_.Allocate(bytes);
  };
  const uint64_t rows = max_rows;
  ASSIGN_OR_RETURN(adjusted_, allocate(rows * vocab_ * sizeof(float)));
  ASSIGN_OR_RETURN(rows_, allocate(rows * sizeof(SampleRow)));
  ASSIGN_OR_RETURN(masks_, allocate(rows * MaskWords(vocab_) * sizeof(uint32_t)));
  ASSIGN_OR_RETURN(banned_, allocate(eos_ids_.size() * sizeof(int32_t)));
  ASSIGN_OR_RETURN(biases_, allocate(uint64_t{list_room_} * sizeof(SampleBias)));
  ASSIGN_OR_RETURN(penalties_, allocate(uint64_t{list_room_} * sizeof(SamplePenalty)));
  ASSIGN_OR_RETURN(out_, allocate(rows * sizeof(SampledRow)));
  ASSIGN_OR_RETURN(tops_, allocate(rows * 2 * kMaxSampleChunks * sizeof(uint64_t)));
  ASSIGN_OR_RETURN(sums_, allocate(rows * SampleTiles(vocab_) * sizeof(uint64_t)));
  ASSIGN_OR_RETURN(ring_, ResultRing::Create(device_.graphs(), rows * sizeof(SampledRow)));
  device_.UploadAll(eos_ids_, banned_);
  packed_rows_.reserve(rows);
  packed_masks_.reserve(rows * MaskWords(vocab_));
  packed_biases_.reserve(list_room_);
  packed_penalties_.reserve(list_room_);
  results_.reserve(rows);
  words_.reserve(MaskWords(vocab_));
  keys_.reserve(kMaxSampleTop);
  return device_.Synchronize();
}

// A token has one entry: those of a row are added at the same time.
void CudaSampler::PackBiases(std::span<const LogitBias> biases, std::span<const int32_t> banned) {
  const size_t begin = packed_biases_.size();
  for (const LogitBias& entry : biases) packed_biases_.push_back({entry.token, entry.bias});
  for (const int32_t id : banned) {
    const auto at =
        std::find_if(packed_biases_.begin() + static_cast<ptrdiff_t>(begin), packed_biases_.end(),
                     [id](const SampleBias& entry) { return entry.token == id; });
    if (at == packed_biases_.end()) {
      packed_biases_.push_back({id, -std::numeric_limits<float>::infinity()});
    } else {
      at->bias = -std::numeric_limits<float>::infinity();
    }
  }
}

bool CudaSampler::Pack(const SampleQuery& query) {
  const SamplingParams& params = query.input.params;
  SampleRow out;
  out.row = query.row;
  out.given = query.given;
  if (query.slot != kNoSlot) out.slot = static_cast<int32_t>(query.slot);
  if (query.logprobs != nullptr) out.num_top = query.num_top;
  if (query.given < 0) {
    const std::span<const LogitBias> biases = query.input.logit_bias;
    const std::span<const TokenCount> counts = query.input.counts;
    const std::span<const int32_t> stop_ids = query.input.stop_ids;
    if (packed_biases_.size() + biases.size() + stop_ids.size() > list_room_ ||
        packed_penalties_.size() + counts.size() > list_room_) {
      return false;
    }
    out.has_mask = !query.input.mask.empty();
    out.bans = BansEnds(query.input, eos_ids_, &words_);
    out.adjusted = out.has_mask || out.bans || !biases.empty() || !counts.empty();
    out.mask = static_cast<uint32_t>(packed_masks_.size());
    packed_masks_.insert(packed_masks_.end(), query.input.mask.begin(), query.input.mask.end());
    out.biases[0] = static_cast<uint32_t>(packed_biases_.size());
    PackBiases(biases, out.bans ? stop_ids : std::span<const int32_t>());
    out.biases[1] = static_cast<uint32_t>(packed_biases_.size());
    out.penalties[0] = static_cast<uint32_t>(packed_penalties_.size());
    for (const TokenCount& of_all : counts) {
      const TokenCount count = Without(of_all, query.input.later);
      const bool seen = count.in_prompt + count.in_output > 0;
      packed_penalties_.push_back({count.token, seen ? params.repetition_penalty : 1.0f,
                                   params.frequency_penalty * static_cast<float>(count.in_output),
                                   count.in_output > 0 ? params.presence_penalty : 0.0f});
    }
    out.penalties[1] = static_cast<uint32_t>(packed_penalties_.size());
    out.greedy = params.temperature < kGreedyBelow;
    out.top_k = params.top_k;
    out.top_p = params.top_p;
    out.min_p = params.min_p;
    if (!out.greedy) {
      out.to_log2 = 1.0f / params.temperature * weight::kLog2E;
      out.uniform = UniformDraw(params.seed, query.input.position, 0);
    }
  }
  SetKind(vocab_, &out);
  packed_rows_.push_back(out);
  return true;
}

void CudaSampler::ForgetPacked() {
  packed_rows_.clear();
  packed_masks_.clear();
  packed_biases_.clear();
  packed_penalties_.clear();
}

void CudaSampler::Launch(Tensor logits) {
  device_.UploadAll(packed_rows_, rows_);
  device_.UploadAll(packed_masks_, masks_);
  device_.UploadAll(packed_biases_, biases_);
  device_.UploadAll(packed_penalties_, penalties_);
  SampleArgs args;
  args.logits = Floats(logits);
  args.adjusted = adjusted_.as<float>();
  args.vocab = vocab_;
  args.quantum_bits = QuantumBits(vocab_);
  args.rows = rows_.as<const SampleRow>();
  args.num_rows = static_cast<uint32_t>(packed_rows_.size());
  args.masks = masks_.as<const uint32_t>();
  args.banned = banned_.as<const int32_t>();
  args.num_banned = static_cast<uint32_t>(eos_ids_.size());
  args.biases = biases_.as<const SampleBias>();
  args.penalties = penalties_.as<const SamplePenalty>();
  args.out = out_.as<SampledRow>();
  args.chunks = std::clamp(2 * device_.parallel_blocks() / args.num_rows, 1u,
                           std::min(kMaxSampleChunks, SampleTiles(vocab_)));
  args.tops = tops_.as<uint64_t>();
  args.sums = sums_.as<uint64_t>();
  args.last_tokens = last_tokens_.data();
  const auto any = [this](const auto& of) {
    return std::any_of(packed_rows_.begin(), packed_rows_.end(), of);
  };
  args.any_adjusted = any([](const SampleRow& row) { return row.adjusted; });
  args.any_drawn = any([](const SampleRow& row) { return row.drawn_from_all; });
  args.any_search = any([](const SampleRow& row) { return row.searches; });
  args.any_simple = any([](const SampleRow& row) { return !row.searches; });
  device_.kernels().sample_rows(args, device_.stream());
  ForgetPacked();
}

Status CudaSampler::Take(const SampleQuery& query, const SampledRow& row, int32_t* token) {
  *token = row.token;
  if (row.bad != 0) return absl::DataLossError("the logits are not finite");
  if (query.logprobs == nullptr) return OkStatus();
  const double log_sum =
      LogSum(row.max, std::ldexp(static_cast<double>(row.total), -QuantumBits(vocab_)));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  PositionLogprobs& out = *query.logprobs;
  out.token = row.token;
  out.logprob = logprob(row.logit);
  out.rank = row.rank;
  out.top.clear();
  keys_.assign(row.top, row.top + row.num_top);
  std::sort(keys_.begin(), keys_.end());
  for (const uint64_t key : keys_) {
    out.top.push_back({TokenOfKey(key), logprob(LogitOfKey(key))});
  }
  return OkStatus();
}

Status CudaSampler::TakeAll(std::span<const SampleQuery> queries, const SampledRow* rows,
                            std::span<int32_t> tokens) {
  Status first_error = OkStatus();
  for (size_t i = 0; i < queries.size(); ++i) {
    const Status taken = Take(queries[i], rows[i], &tokens[i]);
    if (first_error.ok()) first_error = taken;
  }
  return first_error;
}

Status CudaSampler::Sample(Tensor logits, std::span<const SampleQuery> queries,
                           std::span<int32_t> tokens) {
  CHECK(logits.cols == vocab_);
  // What the steps before this one left there is on its way to the host, maybe.
  if (ring_->in_flight() > 0) {
    RETURN_IF_ERROR(device_.graphs()->Synchronize(DeviceStream::kCopy));
  }
  Status first_error = OkStatus();
  for (size_t begin = 0; begin < queries.size();) {
    size_t end = begin;
    while (end < queries.size() && Pack(queries[end])) ++end;
    CHECK(end > begin);  // the lists of one row always have room
    Launch(logits);
    results_.resize(end - begin);
    device_.Download(out_.data(), results_.size() * sizeof(SampledRow), results_.data());
    RETURN_IF_ERROR(device_.Synchronize());
    const Status taken = TakeAll(queries.subspan(begin, end - begin), results_.data(),
                                 tokens.subspan(begin, end - begin));
    if (first_error.ok()) first_error = taken;
    begin = end;
  }
  return first_error;
}

StatusOr<bool> CudaSampler::Begin(Tensor logits, std::span<const SampleQuery> queries) {
  for (const SampleQuery& query : queries) {
    if (Pack(query)) continue;
    ForgetPacked();
    return false;
  }
  RETURN_IF_ERROR(ring_->BeginStep());
  if (!queries.empty()) {
    CHECK(logits.cols == vocab_);
    Launch(logits);
  }
  last_tokens_.Share();
  RETURN_IF_ERROR(ring_->EndStep(out_.data(), queries.size() * sizeof(SampledRow)));
  return true;
}

StatusOr<bool> CudaSampler::Done() { return last_tokens_.Done(ring_.get()); }

Status CudaSampler::Take(std::span<const SampleQuery> queries, std::span<int32_t> tokens) {
  ASSIGN_OR_RETURN(const auto results, ring_->Poll());
  CHECK(results.has_value() && results->size() == queries.size() * sizeof(SampledRow));
  const Status taken =
      TakeAll(queries, reinterpret_cast<const SampledRow*>(results->data()), tokens);
  ring_->Release();
  return taken;
}

}  // namespace flotilla::cuda
