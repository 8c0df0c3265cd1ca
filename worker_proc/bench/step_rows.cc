// Whole steps, and attention alone.
#include <algorithm>
#include <cmath>

#include "worker_proc/bench/bench_batches.h"
#include "worker_proc/bench/bench_model.h"
#include "worker_proc/cpu/cpu_tensor.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kDecodeContext = 192;
constexpr uint32_t kStepsAPass = 3;
constexpr double kLongPass = 0.1;  // seconds: long steps find nothing in the caches anyway
constexpr size_t kAttentionBytes = size_t{256} << 20;  // of KV, where one layer takes no more

using Sequences = std::vector<SequenceSize>;

Sequences Repeat(uint32_t count, SequenceSize size) { return Sequences(count, size); }

struct StepCase {
  std::string name;
  std::vector<Sequences> steps;
};

// Of a layer's experts; as many are read as tokens find that choose by chance.
Work ExpertWork(BenchModel* model, const RecordedOp& op, double tokens) {
  const auto& weight = static_cast<const cpu::CpuExperts&>(*op.experts);
  const double share = double{1} * op.top_k / weight.num_experts;
  Work work = model->TokenWork(weight.of(0)) * (tokens * op.top_k);
  work.bytes = static_cast<double>(model->recorder().BytesOf(op.experts)) *
               (1 - std::pow(1 - share, tokens));
  return work;
}

// What a step computes and reads: every matrix, the head for who samples, all KV.
Work StepWork(BenchModel* model, const Sequences& sequences) {
  Work work;
  for (const RecordedOp& op : model->ops()) {
    if (op.linear != nullptr) {
      // The recorded step sampled one token.
      const double tokens = op.x.rows == 1 ? double{1} * static_cast<double>(sequences.size())
                                           : double{1} * TokensOf(sequences);
      Work matrix = model->TokenWork(*op.linear) * tokens;
      matrix.bytes = static_cast<double>(model->recorder().SourceOf(op.linear).bytes);
      work += matrix;
    } else if (op.experts != nullptr) {
      work += ExpertWork(model, op, TokensOf(sequences));
    } else if (op.op == Op::kAttention) {
      work += AttentionWorkOf(model->ShapeOf(op.layer), sequences);
    }
  }
  return work;
}

using OpSeconds = std::array<double, kOpNames.size()>;

struct StepTimes {
  double seconds = 0;
  OpSeconds ops{};
};

StatusOr<StepTimes> RunPlans(BenchModel* model, const std::vector<StepPlan>& plans) {
  StepTimes times;
  for (const StepPlan& plan : plans) {
    ASSIGN_OR_RETURN(const double seconds, model->StepSeconds(plan));
    times.seconds += seconds;
    const OpSeconds ops = model->recorder().TakeSeconds();
    for (size_t i = 0; i < ops.size(); ++i) times.ops[i] += ops[i];
  }
  return times;
}

Status AddStepRow(BenchModel* model, const StepCase& c, std::vector<RooflineRow>* rows) {
  std::vector<StepPlan> plans;
  RooflineRow row;
  row.kernel = "forward";
  row.name = c.name;
  for (const Sequences& step : c.steps) {
    plans.push_back(MakePlan(step, model->config().vocab_size));
    row.tokens += TokensOf(step);
    row.works.push_back(StepWork(model, step));
  }
  StepTimes best{1e9, {}};
  // Each pass several steps: the first finds the caches empty, as none in a row does.
  const auto pass = [&](std::vector<double>* seconds) -> Status {
    double fastest = 1e9, all = 0;
    for (uint32_t i = 0; i < kStepsAPass && all < kLongPass; ++i) {
      ASSIGN_OR_RETURN(const StepTimes times, RunPlans(model, plans));
      all += times.seconds;
      fastest = std::min(fastest, times.seconds);
      if (times.seconds < best.seconds) best = times;
    }
    seconds->push_back(fastest);
    return OkStatus();
  };
  RETURN_IF_ERROR(model->Measure(std::move(row), pass, rows));
  rows->back().tokens_per_second = rows->back().tokens / best.seconds;
  for (size_t i = 0; i < best.ops.size(); ++i) {
    if (best.ops[i] > 0) rows->back().ops.emplace_back(kOpNames[i], best.ops[i] / best.seconds);
  }
  return OkStatus();
}

// The cases of attention, at most as long as the model's context.
std::vector<StepCase> AttentionCases(uint32_t context) {
  const auto up_to = [&](uint32_t tokens) { return std::min(tokens, context); };
  const uint32_t longest = up_to(kMaxContext), chunk = std::min(kMaxChunk, context);
  Sequences mix = Repeat(32, {1, up_to(512)});
  mix.push_back({std::min(256u, context), up_to(1024)});
  return {{StrCat("prefill ", chunk, " at ", longest), {Repeat(1, {chunk, longest})}},
          {StrCat("decode 1 at ", longest), {Repeat(1, {1, longest})}},
          {StrCat("decode 64 at ", up_to(192)), {Repeat(64, {1, up_to(192)})}},
          {StrCat("decode 64 at ", up_to(2048)), {Repeat(64, {1, up_to(2048)})}},
          {StrCat("mix: decode 32 at ", up_to(512), ", prefill ", mix.back().q_tokens, " at ",
                  mix.back().kv_tokens),
           {mix}}};
}

Status FillKv(BenchModel* model, const std::vector<RecordedOp>& ropes, uint32_t pages) {
  const uint32_t chunk = ropes[0].x.rows;
  for (uint32_t begin = 0; begin < pages * kPageSize; begin += chunk) {
    const ForwardBatch batch =
        MakeFillBatch(begin, std::min(chunk, pages * kPageSize - begin), model->context());
    const AttentionContext context = model->backend().BeginStep(batch);
    for (const RecordedOp& op : ropes) {
      model->backend().RopeAndWriteKv({*op.rope, op.layer}, context, op.x.First(batch.num_tokens));
    }
  }
  return OkStatus();
}

}  // namespace

Status AddForwardRows(BenchModel* model, std::vector<RooflineRow>* rows) {
  const uint32_t at = std::min(kDecodeContext, model->context());
  const uint32_t chunk = std::min(kMaxChunk, model->context());
  const SequenceSize quarter{chunk / 4, chunk / 4};
  const std::vector<Sequences> turns(4, Repeat(1, quarter));
  for (const StepCase& c :
       {StepCase{StrCat("decode 1 at ", at), {Repeat(1, {1, at})}},
        StepCase{StrCat("decode 8 at ", at), {Repeat(8, {1, at})}},
        StepCase{StrCat("decode 32 at ", at), {Repeat(32, {1, at})}},
        StepCase{StrCat("prefill ", chunk), {Repeat(1, {chunk, chunk})}},
        StepCase{StrCat("prefill 4 x ", chunk / 4, ", one step"), {Repeat(4, quarter)}},
        StepCase{StrCat("prefill 4 x ", chunk / 4, ", four steps"), turns}}) {
    RETURN_IF_ERROR(AddStepRow(model, c, rows));
  }
  return OkStatus();
}

Status AddAttentionRows(BenchModel* model, std::vector<RooflineRow>* rows) {
  std::vector<RecordedOp> attention, ropes;
  for (const RecordedOp& op : model->ops()) {
    if (op.op == Op::kAttention) attention.push_back(op);
    if (op.op == Op::kRope) ropes.push_back(op);
  }
  if (attention.empty() || ropes.size() != attention.size()) return OkStatus();
  const std::vector<StepCase> cases = AttentionCases(model->context());
  uint32_t pages = 1;
  for (const StepCase& c : cases) pages = std::max(pages, PagesOf(c.steps[0]));
  // As many layers as memory of a bearable size holds; all of one geometry.
  const AttentionLayer& first = attention[0].layer;
  KvCacheShape shape{1, kPageSize, first.num_kv_heads, first.qk_dim, first.v_dim};
  const size_t layer_bytes = model->backend().KvPageBytes(shape) * pages;
  shape.num_layers =
      static_cast<uint32_t>(std::clamp<size_t>(kAttentionBytes / layer_bytes, 1, attention.size()));
  attention.resize(shape.num_layers);
  ropes.resize(shape.num_layers);
  for (uint32_t i = 0; i < shape.num_layers; ++i)
    attention[i].layer.layer = ropes[i].layer.layer = i;
  RETURN_IF_ERROR(model->backend().AllocateKvCache(shape, pages));
  RETURN_IF_ERROR(FillKv(model, ropes, pages));
  for (const StepCase& c : cases) {
    const Sequences& sequences = c.steps[0];
    const ForwardBatch batch = MakeBatch(sequences);
    RooflineRow row;
    row.kernel = "attention";
    row.name = c.name;
    row.tokens = batch.num_tokens;
    Work work;
    for (const RecordedOp& op : attention)
      work += AttentionWorkOf(model->ShapeOf(op.layer), sequences);
    row.works = {work};
    const auto pass = [&](std::vector<double>* seconds) {
      const AttentionContext context = model->backend().BeginStep(batch);
      const auto layer = [&](size_t i) {
        const RecordedOp& op = attention[i];
        model->backend().RaggedPagedAttention(op.layer, context, op.x.First(batch.num_tokens),
                                              op.out.First(batch.num_tokens));
      };
      RunSlices(attention.size(), layer, seconds);
      return OkStatus();
    };
    RETURN_IF_ERROR(model->Measure(std::move(row), pass, rows));
  }
  return OkStatus();
}

}  // namespace flotilla::bench
