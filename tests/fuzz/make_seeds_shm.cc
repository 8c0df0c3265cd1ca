// Seeds of the targets step_plan, step_result and ring.
#include <string>

#include "shm/ring_layout.h"
#include "shm/step_plan.h"
#include "shm/step_result.h"
#include "tests/fuzz/make_seeds.h"

namespace flotilla::fuzz {
namespace {

StepPlan OpeningPlan() {
  StepPlan plan;
  plan.step_id = 7;
  plan.epoch = 1;
  PlanOpen plain, full;
  plain.slot = 0;
  plain.output_start = 3;
  full.slot = 1;
  full.output_start = 2;
  full.sampling = {.temperature = 0.5f,
                   .top_p = 0.9f,
                   .min_p = 0.1f,
                   .top_k = 5,
                   .seed = 9,
                   .num_logprobs = 2,
                   .num_prompt_logprobs = 1,
                   .min_tokens_until = 4,
                   .presence_penalty = 1,
                   .frequency_penalty = -1,
                   .repetition_penalty = 1.5f};
  full.num_logit_bias = 2;
  full.num_history = 2;
  full.num_stop_ids = 1;
  plan.opens = {plain, full};
  plan.logit_bias = {{1, 5.0f}, {2, -5.0f}};
  plan.history = {4, 5};
  plan.stop_ids = {7};
  plan.rows = {
      {.slot = 0, .num_tokens = 3, .num_new_pages = 1, .flags = kRowSample | kRowPromptLogprobs},
      {.slot = 1, .start_pos = 2, .num_tokens = 1, .num_new_pages = 2, .flags = kRowSample}};
  plan.input_ids = {1, 2, 3, 6};
  plan.new_pages = {0, 1, 2};
  return plan;
}

StepPlan DecodingPlan() {
  StepPlan plan;
  plan.step_id = 8;
  plan.epoch = 1;
  plan.rows = {{.slot = 0, .start_pos = 3, .num_tokens = 1, .flags = kRowSample},
               {.slot = 1, .start_pos = 3, .num_tokens = 1}};
  plan.input_ids = {9, 10};
  plan.closes = {0, 1};
  return plan;
}

// A mean of two chunks, the last position of another prompt beside the first.
std::vector<StepPlan> EmbeddingPlans() {
  StepPlan first, second;
  first.step_id = 9;
  first.opens.resize(2);
  first.opens[1].slot = 1;
  first.rows = {{.slot = 0, .num_tokens = 2, .num_new_pages = 1, .flags = kRowPoolMean},
                {.slot = 1, .num_tokens = 1, .num_new_pages = 1, .flags = kRowEmbed}};
  first.input_ids = {1, 2, 3};
  first.new_pages = {0, 1};
  first.closes = {1};
  second.step_id = 10;
  second.rows = {{.slot = 0, .start_pos = 2, .num_tokens = 1, .flags = kRowPoolMean | kRowEmbed}};
  second.input_ids = {4};
  second.closes = {0};
  return {first, second};
}

void MakeStepPlan() {
  StepPlan to_reset, to_end;
  to_reset.command = StepCommand::kReset;
  to_reset.num_pages = 32;
  to_end.command = StepCommand::kShutdown;
  std::string opening, decoding, reset, shutdown, idle;
  BuildStepPlan(OpeningPlan(), &opening);
  BuildStepPlan(DecodingPlan(), &decoding);
  BuildStepPlan(to_reset, &reset);
  BuildStepPlan(to_end, &shutdown);
  BuildStepPlan({}, &idle);
  Save("step_plan", "life", Pieces({reset, opening, decoding, idle, shutdown}));
  StepPlan again;  // of a slot with penalties, a token that it has
  again.rows = {{.slot = 1, .start_pos = 2, .num_tokens = 1}};
  again.input_ids = {8};
  BuildStepPlan(again, &idle);
  Save("step_plan", "again", Pieces({opening, idle}));
  StepPlan overlap = DecodingPlan();
  overlap.input_ids[0] = kLastToken;
  BuildStepPlan(overlap, &idle);
  Save("step_plan", "overlap", Pieces({opening, idle}));
  const std::vector<StepPlan> embedding = EmbeddingPlans();
  std::string begun, pooled;
  BuildStepPlan(embedding[0], &begun);
  BuildStepPlan(embedding[1], &pooled);
  Save("step_plan", "embedding", Pieces({begun, pooled}));
  Save("step_plan", "pooled-twice", Pieces({begun, begun, pooled, begun}));
  StepPlan masked = DecodingPlan();
  masked.rows[0].flags |= kRowMask;
  masked.masks.assign(32, 0xf0f0f0f0);  // of 1000 tokens
  BuildStepPlan(masked, &idle);
  Save("step_plan", "masked", Pieces({opening, idle}));
  StepPlan draft = DecodingPlan();
  draft.rows[0].num_tokens = 3;
  draft.rows[0].flags |= kRowVerify;
  draft.input_ids = {9, 11, 12, 10};
  draft.closes.clear();
  BuildStepPlan(draft, &idle);
  Save("step_plan", "draft", Pieces({opening, idle, decoding}));
  draft.rows[0].flags |= kRowMask;
  draft.masks.assign(size_t{3} * 32, 0xf0f0f0f0);
  BuildStepPlan(draft, &idle);
  Save("step_plan", "draft-masked", Pieces({opening, idle}));
  Save("step_plan", "twice", Pieces({opening, opening, decoding, decoding}));
}

void MakeStepResult() {
  const PositionLogprobs position = {
      .token = 5, .logprob = -0.5f, .rank = 2, .top = {{4, -0.1f}, {5, -0.5f}}};
  StepResult result;
  result.step_id = 7;
  result.cuda_graph = true;
  result.rows.resize(2);
  result.rows[0].slot = 1;
  result.rows[0].token = 5;
  result.rows[0].has_logprobs = true;
  result.rows[0].logprobs = position;
  result.rows[0].accepted = {4, 6};
  result.rows[0].accepted_logprobs = {position, position};
  result.rows[1].slot = 2;
  result.rows[1].prompt_start = 1;
  result.rows[1].prompt_logprobs = {position, position};
  StepResult embedded;
  embedded.rows.resize(1);
  embedded.rows[0].embedding = {0.5f, -1.0f};
  StepResult failed;
  failed.code = 13;
  failed.message = "no";
  std::string good, bad, vector;
  BuildStepResult(result, &good);
  BuildStepResult(failed, &bad);
  BuildStepResult(embedded, &vector);
  Save("step_result", "both", Pieces({good, bad, good}));
  Save("step_result", "embedding", Pieces({vector, good}));
}

void MakeRing() {
  const auto marker = [](uint32_t bytes, uint32_t kind) { return Raw(RingMarker{bytes, kind}); };
  const auto ring = [](uint8_t what, uint64_t write, uint64_t read, const std::string& bytes) {
    return Raw(what) + Raw(write) + Raw(read) + Raw(read) + bytes;
  };
  const std::string frame = marker(4, kFrameMarker) + "abcd    ";
  Save("ring", "frames", ring(0, 32, 0, frame + frame));
  Save("ring", "asleep", ring(32, 4112, 4096, frame));
  Save("ring", "wraps", ring(0, 4112, 4080, marker(8, kSkipMarker) + "        " + frame));
  Save("ring", "full", ring(16, 4096, 0, marker(4088, kFrameMarker)));
  Save("ring", "smaller", Raw<uint8_t>(8) + Raw<uint64_t>(2048) + ring(0, 16, 0, frame).substr(1));
}

}  // namespace

void SaveSharedMemory() {
  MakeStepPlan();
  MakeStepResult();
  MakeRing();
}

}  // namespace flotilla::fuzz
