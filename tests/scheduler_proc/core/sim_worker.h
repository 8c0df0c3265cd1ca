// A model and its workers for tests of the scheduler: exact, tiny, and blind to everything but the
// plans.
//
// The "model" maps a prefix to a 64-bit chain hash, seeded with the tenant's salt, and that hash to
// the next token. The "KV cache" holds, for each (page, offset), the hash of the prefix that ends
// there. A row computes the hashes of its tokens from the one it finds in front of it, and then
// compares every position it may read with what the request's sequence says should stand there:
// a wrongly shared, stale or overwritten page, or a wrong position, cannot go unnoticed. Likewise
// biases, and the tokens that a slot with penalties was told.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scheduler_proc/core/scheduler.h"

namespace flotilla::testing {

inline uint64_t Mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

inline uint64_t ChainStart(const std::string& salt) {
  uint64_t hash = 1;
  for (const char c : salt) hash = Mix(hash + static_cast<uint8_t>(c));
  return hash;
}

inline uint64_t Chain(uint64_t prefix, int32_t token) {
  return Mix(prefix * 31 + static_cast<uint32_t>(token) + 7);
}

inline bool Allows(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<uint32_t>(token) / 32] >> (token % 32) & 1) != 0;
}

struct SimModel {
  uint32_t vocab_size = 97;
  int32_t eos = 0;
  uint32_t repeats = 0;  // of a thousand tokens so many are those of kPeriod positions before
  static constexpr uint32_t kPeriod = 7;
  uint32_t repeats_until = UINT32_MAX;  // that position; then none is
  // From that position on, after the same three tokens another one comes each time.
  uint32_t misleads_from = UINT32_MAX;

  // min_tokens: before `until` no token may end the output.
  struct Ends {
    uint32_t until = 0;
    std::span<const int32_t> stop_ids = {};
  };
  bool IsBanned(int32_t token, uint32_t position, const Ends& ends) const {
    const auto& ids = ends.stop_ids;
    return position < ends.until &&
           (token == eos || std::find(ids.begin(), ids.end(), token) != ids.end());
  }
  // The token that follows the prefix, standing at `position`.
  int32_t Next(uint64_t chain, uint32_t position, const Ends& ends) const {
    return NextAllowed(chain, position, ends, {});
  }
  // The same among those that the mask allows (empty: all), as the sampler does it: an end gives
  // way to min_tokens unless nothing else is allowed. -1: the mask allows none.
  int32_t NextAllowed(uint64_t chain, uint32_t position, const Ends& ends,
                      std::span<const uint32_t> mask) const {
    const auto allowed = [&](int32_t token) { return mask.empty() || Allows(mask, token); };
    const bool repeat = position < repeats_until && Mix(chain + 1) % 1000 < repeats;
    auto first = static_cast<int32_t>(Mix(repeat ? 1 + position % kPeriod : chain) % vocab_size);
    if (position >= misleads_from) {
      const uint32_t place = position % 4;
      first = static_cast<int32_t>(place < 3 ? 1 + place : 10 + position / 4 % 80);
    }
    for (const bool may_end : {false, true}) {
      int32_t token = first;
      do {
        if (allowed(token) && (may_end || !IsBanned(token, position, ends))) return token;
        token = (token + 1) % static_cast<int32_t>(vocab_size);
      } while (token != first);
    }
    return -1;
  }
  static PositionLogprobs Logprobs(uint64_t prefix_chain, int32_t token) {
    PositionLogprobs out;
    out.token = token;
    out.logprob = -static_cast<float>(Mix(prefix_chain + static_cast<uint32_t>(token)) % 4096);
    out.rank = 1;
    out.top = {{token, out.logprob}};
    return out;
  }
  // Of the prompt that `chain` is the hash of.
  static std::vector<float> Embedding(uint64_t chain, bool mean) {
    return {static_cast<float>(Mix(chain) % 65536), mean ? 1.0f : 0.0f};
  }
};

// A request and everything that must become of it.
struct Expected {
  ReqSpec spec;
  std::vector<int32_t> sequence;  // prompt and all output, to its natural end
  std::vector<uint64_t> chains;   // chains[i]: of sequence[0, i)
  // With a grammar: masks[i] is that of output token resumed_ids.size() + i.
  std::vector<std::vector<uint32_t>> masks;
  uint32_t num_output = 0;  // resumed ones included
  Finish finish = Finish::kNone;
};

// Follows the grammar of a request that is being foretold.
class ForetoldGrammar {
 public:
  ForetoldGrammar(const SimModel& model, Expected* out) : model_(model), out_(*out) {
    if (out_.spec.grammar == nullptr) return;
    matcher_ = *out_.spec.grammar->NewMatcher();
    for (const int32_t token : out_.spec.resumed_ids) Follow(token);
  }
  int32_t Next(const SimModel::Ends& ends) {
    const auto position = static_cast<uint32_t>(out_.sequence.size());
    if (matcher_ == nullptr) return model_.Next(out_.chains.back(), position, ends);
    std::vector<uint32_t>& mask = out_.masks.emplace_back(MaskWords(model_.vocab_size));
    EXPECT_TRUE(matcher_->FillMask(mask).ok());
    return model_.NextAllowed(out_.chains.back(), position, ends, mask);
  }
  // The request's end by its grammar, if it is one.
  Finish Follow(int32_t token) {
    if (matcher_ == nullptr) return Finish::kNone;
    EXPECT_TRUE(matcher_->Accept(token).ok());
    if (matcher_->IsTerminated()) return Finish::kStop;
    std::vector<uint32_t> mask(MaskWords(model_.vocab_size));
    return matcher_->FillMask(mask).ok() ? Finish::kNone : Finish::kError;
  }

 private:
  const SimModel& model_;
  Expected& out_;
  std::unique_ptr<GrammarMatcher> matcher_;
};

// The request is one that Add takes.
inline Expected Foretell(const SimModel& model, const SchedulerConfig& config,
                         const ReqSpec& spec) {
  Expected out;
  out.spec = spec;
  out.sequence = spec.prompt_ids;
  out.sequence.insert(out.sequence.end(), spec.resumed_ids.begin(), spec.resumed_ids.end());
  out.chains.push_back(ChainStart(spec.cache_salt));
  for (const int32_t token : out.sequence) out.chains.push_back(Chain(out.chains.back(), token));
  const size_t prompt_len = spec.prompt_ids.size();
  if (spec.pooling != Pooling::kNone) out.finish = Finish::kStop;
  SimModel::Ends ends;
  if (spec.min_new_tokens > 0) {
    ends = {static_cast<uint32_t>(prompt_len) + spec.min_new_tokens, spec.stop_token_ids};
  }
  ForetoldGrammar grammar(model, &out);
  while (out.finish == Finish::kNone) {
    const int32_t token = grammar.Next(ends);
    out.sequence.push_back(token);
    out.chains.push_back(Chain(out.chains.back(), token));
    const size_t num_output = out.sequence.size() - prompt_len;
    bool stops = token == model.eos && !spec.ignore_eos;
    for (const int32_t stop : spec.stop_token_ids) stops |= token == stop;
    if (stops && num_output > spec.min_new_tokens) {
      out.finish = Finish::kStop;
      continue;
    }
    const bool full =
        num_output == spec.max_new_tokens || out.sequence.size() == config.context_length;
    out.finish = grammar.Follow(token);
    // No mask is needed behind the last token.
    if (full && out.finish != Finish::kStop) out.finish = Finish::kLength;
  }
  out.num_output = static_cast<uint32_t>(out.sequence.size() - prompt_len);
  return out;
}

class SimWorker {
 public:
  // A step of so many tokens takes, from 0 on.
  static constexpr int64_t kTokenNs = 2'000'000;
  static constexpr int64_t StepNs(size_t num_tokens) {
    return 10'000'000 + kTokenNs * static_cast<int64_t>(num_tokens);
  }

  // `requests` is looked up by the sampling seed, which tests set to the request's id.
  SimWorker(const SimModel& model, const std::map<ReqId, Expected>* requests, uint32_t num_slots,
            uint32_t num_pages, uint32_t page_size)
      : model_(model),
        requests_(requests),
        page_size_(page_size),
        slots_(num_slots),
        kv_(size_t{num_pages} * page_size) {}

  void Reset() {
    for (Slot& slot : slots_) slot = Slot();
    for (uint64_t& cell : kv_) cell = 0;
  }

  // *result is what rank 0 would send. Failures are reported through gtest.
  void Run(const StepPlan& plan, StepResult* result) {
    result->step_id = plan.step_id;
    result->epoch = plan.epoch;
    result->end_ns = StepNs(plan.input_ids.size());
    result->rows.clear();
    ASSERT_NO_FATAL_FAILURE(Open(plan));
    std::vector<int32_t> input_ids = plan.input_ids;
    const int32_t* tokens = input_ids.data();
    const uint32_t* pages = plan.new_pages.data();
    masks_ = plan.masks;
    ASSERT_LE(masks_.size(), (slots_.size() + kSpareMasks) * MaskWords(model_.vocab_size));
    std::vector<uint8_t> seen(slots_.size(), 0);
    for (const PlanRow& row : plan.rows) {
      ASSERT_LT(row.slot, slots_.size());
      ASSERT_FALSE(seen[row.slot]) << "two rows of slot " << row.slot;
      seen[row.slot] = 1;
      Slot& slot = slots_[row.slot];
      ASSERT_TRUE(slot.open);
      ASSERT_TRUE(!slot.sampling.has_penalties() || row.start_pos <= slot.known);
      slot.known = row.start_pos + row.num_tokens;
      slot.pages.insert(slot.pages.end(), pages, pages + row.num_new_pages);
      ASSERT_NO_FATAL_FAILURE(
          FillLastToken(slot, row, &input_ids[static_cast<size_t>(tokens - input_ids.data())]));
      Write(slot, row, tokens);
      pages += row.num_new_pages;
      tokens += row.num_tokens;
    }
    ASSERT_EQ(tokens, input_ids.data() + input_ids.size());
    ASSERT_EQ(pages, plan.new_pages.data() + plan.new_pages.size());
    tokens = input_ids.data();
    for (const PlanRow& row : plan.rows) {  // after all writes, as a real forward may order them
      RowResult* out = &result->rows.emplace_back();
      if (row.flags & kRowVerify) {
        ASSERT_NO_FATAL_FAILURE(Verify(slots_[row.slot], row, tokens, out));
      } else {
        ASSERT_NO_FATAL_FAILURE(Read(slots_[row.slot], row, out));
      }
      tokens += row.num_tokens;
      slots_[row.slot].last_token = result->rows.back().token;
      if (row.flags & kRowPoolMean) slots_[row.slot].num_pooled = row.start_pos + row.num_tokens;
    }
    ASSERT_TRUE(masks_.empty());
    for (const uint32_t slot : plan.closes) {
      ASSERT_TRUE(slots_[slot].open) << "slot " << slot << " closed twice";
      slots_[slot] = Slot();
    }
  }

  // What a row of a plan wrote, the slot being as it was then, is no one's KV.
  void Garble(const PlanRow& row) {
    for (uint32_t i = 0; i < row.num_tokens; ++i) Cell(slots_[row.slot], row.start_pos + i) = 0;
  }

  const Expected& RequestOf(uint32_t slot) const {
    return requests_->at(slots_[slot].sampling.seed);
  }
  uint64_t last_tokens_used() const { return last_tokens_used_; }
  uint64_t drafts_verified() const { return drafts_verified_; }
  uint64_t masked_drafts_verified() const { return masked_drafts_; }
  uint64_t masks_used() const { return masks_used_; }
  uint32_t num_open() const {
    uint32_t count = 0;
    for (const Slot& slot : slots_) count += slot.open;
    return count;
  }

 private:
  struct Slot {
    bool open = false;
    SamplingParams sampling;
    std::vector<int32_t> stop_ids;
    std::vector<uint32_t> pages;
    uint32_t known = 0;       // tokens told by history and rows
    uint32_t num_pooled = 0;  // positions that are in the mean
    int32_t last_token = -1;  // that the step before sampled
  };

  void Open(const StepPlan& plan) {
    std::span<const LogitBias> biases = plan.logit_bias;
    std::span<const int32_t> history = plan.history, stop_ids = plan.stop_ids;
    for (const PlanOpen& open : plan.opens) {
      ASSERT_LT(open.slot, slots_.size());
      slots_[open.slot] =
          Slot{.open = true, .sampling = open.sampling, .stop_ids = {}, .pages = {}};
      const auto own = stop_ids.first(open.num_stop_ids);
      slots_[open.slot].stop_ids.assign(own.begin(), own.end());
      stop_ids = stop_ids.subspan(open.num_stop_ids);
      slots_[open.slot].known = open.num_history;
      const Expected& request = requests_->at(open.sampling.seed);
      ASSERT_EQ(open.output_start, request.spec.prompt_ids.size());
      ASSERT_EQ(open.num_logit_bias, request.spec.logit_bias.size());
      for (uint32_t i = 0; i < open.num_logit_bias; ++i) {
        ASSERT_EQ(biases[i].token, request.spec.logit_bias[i].token);
        ASSERT_EQ(biases[i].bias, request.spec.logit_bias[i].bias);
      }
      for (uint32_t i = 0; i < open.num_history; ++i) {
        ASSERT_EQ(history[i], request.sequence[i]) << "request " << request.spec.id;
      }
      biases = biases.subspan(open.num_logit_bias);
      history = history.subspan(open.num_history);
    }
    ASSERT_TRUE(biases.empty() && history.empty() && stop_ids.empty());
  }

  uint64_t& Cell(const Slot& slot, uint32_t position) {
    return kv_.at(size_t{slot.pages.at(position / page_size_)} * page_size_ +
                  position % page_size_);
  }

  void FillLastToken(const Slot& slot, const PlanRow& row, int32_t* first) {
    if (*first != kLastToken) return;
    ++last_tokens_used_;
    ASSERT_GE(slot.last_token, 0) << "slot " << row.slot << " has sampled nothing";
    *first = slot.last_token;
  }

  void Write(const Slot& slot, const PlanRow& row, const int32_t* tokens) {
    const Expected& request = requests_->at(slot.sampling.seed);
    uint64_t chain =
        row.start_pos == 0 ? ChainStart(request.spec.cache_salt) : Cell(slot, row.start_pos - 1);
    for (uint32_t i = 0; i < row.num_tokens; ++i) {
      chain = Chain(chain, tokens[i]);
      Cell(slot, row.start_pos + i) = chain;
    }
  }

  void Read(const Slot& slot, const PlanRow& row, RowResult* out) {
    const Expected& request = requests_->at(slot.sampling.seed);
    const uint32_t end = row.start_pos + row.num_tokens;
    ASSERT_LT(end, request.sequence.size() + 1);
    for (uint32_t position = 0; position < end; ++position) {
      ASSERT_EQ(Cell(slot, position), request.chains[position + 1])
          << "request " << request.spec.id << " reads wrong KV at " << position << " of " << end;
    }
    out->slot = row.slot;
    const uint64_t last = Cell(slot, end - 1);
    ASSERT_EQ((row.flags & kRowMask) != 0,
              (row.flags & kRowSample) != 0 && request.spec.grammar != nullptr);
    if (row.flags & kRowSample) {
      ASSERT_NO_FATAL_FAILURE(Sample(slot, row, last, out));
      out->has_logprobs = slot.sampling.num_logprobs != kNoLogprobs;
      if (out->has_logprobs) out->logprobs = SimModel::Logprobs(last, out->token);
    }
    const Pooling pooling = request.spec.pooling;
    ASSERT_EQ((row.flags & kRowPoolMean) != 0, pooling == Pooling::kMean);
    if (row.flags & kRowPoolMean) {
      ASSERT_EQ(row.start_pos, slot.num_pooled) << "a mean leaves no position out";
    }
    const bool embeds = pooling != Pooling::kNone && end == request.sequence.size();
    ASSERT_EQ((row.flags & kRowEmbed) != 0, embeds);
    if (embeds) out->embedding = SimModel::Embedding(last, pooling == Pooling::kMean);
    if (!(row.flags & kRowPromptLogprobs)) return;
    out->prompt_start = row.start_pos + 1;
    for (uint32_t position = row.start_pos + 1; position < end; ++position) {
      out->prompt_logprobs.push_back(
          SimModel::Logprobs(request.chains[position], request.sequence[position]));
    }
    if (row.next_token >= 0) {
      out->prompt_logprobs.push_back(SimModel::Logprobs(last, row.next_token));
    }
  }

  // A draft may be wrong, and may go on beyond the request's end.
  void Verify(const Slot& slot, const PlanRow& row, const int32_t* tokens, RowResult* out) {
    const Expected& request = requests_->at(slot.sampling.seed);
    ASSERT_EQ(row.flags & ~kRowMask, kRowSample | kRowVerify);
    ASSERT_GE(row.num_tokens, 2u);
    ASSERT_LE(row.num_tokens, 1 + kMaxDraftTokens);
    PlanRow known = row;
    known.num_tokens = 1;
    known.flags &= ~uint32_t{kRowVerify};
    std::span<const uint32_t> masks = masks_.first(NumMasks(row) * MaskWords(model_.vocab_size));
    const std::span<const uint32_t> others = masks_.subspan(masks.size());
    ASSERT_NO_FATAL_FAILURE(Read(slot, known, out));
    known.flags = row.flags;
    for (known.num_tokens = 2; known.num_tokens <= row.num_tokens; ++known.num_tokens) {
      const int32_t token = tokens[known.num_tokens - 1];
      if (!masks.empty()) {
        ASSERT_TRUE(Allows(masks, token)) << "what is drafted may come next";
        masks = masks.subspan(MaskWords(model_.vocab_size));
      }
      if (token != out->token) break;
      out->accepted.push_back(token);
      if (out->has_logprobs) out->accepted_logprobs.push_back(out->logprobs);
      const uint64_t chain = Cell(slot, row.start_pos + known.num_tokens - 1);
      ASSERT_NO_FATAL_FAILURE(Sample(slot, known, chain, out));
      if (out->has_logprobs) out->logprobs = SimModel::Logprobs(chain, out->token);
    }
    masks_ = others;
    ++drafts_verified_;
    masked_drafts_ += (row.flags & kRowMask) != 0;
  }

  void Sample(const Slot& slot, const PlanRow& row, uint64_t chain, RowResult* out) {
    const uint32_t end = row.start_pos + row.num_tokens;
    const SimModel::Ends ends = {slot.sampling.min_tokens_until, slot.stop_ids};
    if ((row.flags & kRowMask) == 0) {
      out->token = model_.Next(chain, end, ends);
      return;
    }
    const Expected& request = requests_->at(slot.sampling.seed);
    const size_t words = MaskWords(model_.vocab_size);
    ASSERT_GE(masks_.size(), words);
    const std::span<const uint32_t> mask = masks_.first(words);
    masks_ = masks_.subspan(words);
    const size_t place = end - request.spec.prompt_ids.size() - request.spec.resumed_ids.size();
    if (place < request.masks.size() || (row.flags & kRowVerify) == 0) {
      ASSERT_LT(place, request.masks.size());
      ASSERT_TRUE(std::ranges::equal(mask, request.masks[place]))
          << "request " << request.spec.id << " has the mask of another place than " << place;
    }
    out->token = model_.NextAllowed(chain, end, ends, mask);
    ++masks_used_;
  }

  const SimModel model_;
  const std::map<ReqId, Expected>* requests_;
  const uint32_t page_size_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> kv_;         // hash of the prefix that ends at (page, offset)
  std::span<const uint32_t> masks_;  // of the plan that runs, those not yet used
  uint64_t last_tokens_used_ = 0, masks_used_ = 0, drafts_verified_ = 0, masked_drafts_ = 0;
};

}  // namespace flotilla::testing
