// Matrices, norm and sampler: what a step calls beside attention.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <tuple>

#include "worker_proc/bench/bench_model.h"
#include "worker_proc/cpu/quant_pack.h"
#include "worker_proc/runner/sampler.h"

namespace flotilla::bench {
namespace {

constexpr uint32_t kTokens[] = {1, 4, 8, 32, 128, 512};
constexpr uint32_t kSampledRows = 32;
constexpr size_t kFormatBytes = size_t{16} << 20;  // of each synthetic matrix, all copies

// The matrices of all layers that are alike.
struct MatrixGroup {
  std::string name;
  std::vector<RecordedOp> ops;
  Work token;  // of all of them
  double bytes = 0;
  uint32_t max_tokens = 0;
};

MatrixGroup& GroupOf(const std::string& name, std::vector<MatrixGroup>* groups) {
  for (MatrixGroup& group : *groups) {
    if (group.name == name) return group;
  }
  groups->push_back({name, {}, {}, 0, UINT32_MAX});
  return groups->back();
}

std::vector<MatrixGroup> GroupsOf(BenchModel* model) {
  std::vector<MatrixGroup> groups;
  const RecordingBackend& recorder = model->recorder();
  const bool quantised = model->cpu().dtype == cpu::ComputeType::kInt8;
  for (const RecordedOp& op : model->ops()) {
    if (op.linear == nullptr) continue;
    const MatrixSource& source = recorder.SourceOf(op.linear);
    // What is quantised in the file alone is multiplied as floats.
    const bool widened = !quantised && source.dtype != "F16" && source.dtype != "BF16";
    MatrixGroup& group = GroupOf(StrCat(source.label, " ", widened ? "F32" : source.dtype, " ",
                                        op.linear->out_features, "x", op.linear->in_features),
                                 &groups);
    group.ops.push_back(op);
    group.token += model->TokenWork(*op.linear);
    group.bytes += static_cast<double>(source.bytes);
    for (const Tensor& tensor : {op.x, op.out}) {
      group.max_tokens = std::min(group.max_tokens, recorder.MaxRows(tensor));
    }
  }
  return groups;
}

// With other numbers of rows than when it was recorded.
void Call(Backend& backend, const RecordedOp& op, uint32_t tokens) {
  const auto rows = [&](Tensor tensor) { return Tensor{tensor.data, tokens, tensor.cols}; };
  if (op.op == Op::kGateUp) {
    backend.LinearActMul({*op.linear, op.act}, rows(op.x), rows(op.other), rows(op.out));
  } else {
    backend.Linear(*op.linear, rows(op.x), rows(op.out));
  }
}

Status AddGroupRows(BenchModel* model, const MatrixGroup& group, std::vector<RooflineRow>* rows) {
  for (const uint32_t tokens : kTokens) {
    if (tokens > group.max_tokens) continue;
    RooflineRow row;
    row.kernel = group.ops[0].op == Op::kGateUp ? "gate_up" : "gemm";
    row.name = group.name;
    row.tokens = tokens;
    row.works = {group.token * tokens};
    row.works[0].bytes = group.bytes;
    const auto pass = [&](std::vector<double>* seconds) {
      RunSlices(
          group.ops.size(), [&](size_t i) { Call(model->backend(), group.ops[i], tokens); },
          seconds);
      return OkStatus();
    };
    RETURN_IF_ERROR(model->Measure(row, pass, rows));
  }
  return OkStatus();
}

// Logits like a language model's: some hundred candidates above the rest, ever less likely.
std::vector<float> PeakedLogits(uint32_t vocab_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(vocab_size);
  for (float& x : logits) x = normal(random);
  for (int i = 0; i < 300; ++i) {
    logits[random() % vocab_size] =
        18.0f - 1.6f * std::log2(1.0f + static_cast<float>(i)) + normal(random) / 4;
  }
  return logits;
}

// A tensor of a format whose blocks are all alike. Bytes of 0x11 are a small scale and small
// weights in any of them.
struct SyntheticTensor {
  std::vector<uint8_t> data;
  TensorView view;
};

StatusOr<DType> DTypeNamed(const std::string& name) {
  for (uint32_t type = 0; type < 64; ++type) {
    const DTypeTraits* traits = FindDType(type);
    if (traits != nullptr && name == traits->name &&
        cpu::QuantFormatOf(static_cast<DType>(type)).has_value()) {
      return static_cast<DType>(type);
    }
  }
  return absl::InvalidArgumentError(
      StrCat("--formats: the integer kernels know no format '", name, "'"));
}

}  // namespace

Status AddMatrixRows(BenchModel* model, std::vector<RooflineRow>* rows) {
  for (const MatrixGroup& group : GroupsOf(model)) {
    RETURN_IF_ERROR(AddGroupRows(model, group, rows));
  }
  return OkStatus();
}

Status AddFormatRows(BenchModel* model, std::span<const std::string> formats,
                     std::vector<RooflineRow>* rows) {
  if (!formats.empty() && model->cpu().dtype != cpu::ComputeType::kInt8) {
    return absl::InvalidArgumentError("--formats needs a model that is computed in int8");
  }
  const std::vector<MatrixGroup> own = GroupsOf(model);
  std::deque<SyntheticTensor> tensors;
  std::deque<std::unique_ptr<LinearWeight>> weights;
  for (const std::string& format : formats) {
    ASSIGN_OR_RETURN(const DType dtype, DTypeNamed(format));
    for (const MatrixGroup& like : own) {
      const RecordedOp& op = like.ops[0];
      SyntheticTensor& tensor = tensors.emplace_back();
      tensor.view.dtype = dtype;
      tensor.view.rows = op.linear->out_features;
      tensor.view.cols = op.linear->in_features;
      if (tensor.view.cols % Traits(dtype).block_values != 0) continue;
      tensor.view.name = "synthetic";
      tensor.data.assign(tensor.view.rows * tensor.view.row_bytes(), 0x11);
      tensor.view.data = tensor.data;
      MatrixGroup group{StrCat("synthetic ", format, " ", tensor.view.rows, "x", tensor.view.cols),
                        {},
                        {},
                        0,
                        like.max_tokens};
      const size_t copies = std::max<size_t>(1, kFormatBytes / tensor.data.size());
      for (size_t i = 0; i < copies; ++i) {
        const WeightRows all{&tensor.view, 0, tensor.view.rows};
        ASSIGN_OR_RETURN(weights.emplace_back(), model->recorder().LoadLinear({&all, 1}));
        RecordedOp copy = op;
        copy.linear = weights.back().get();
        group.ops.push_back(copy);
        group.token += model->TokenWork(*copy.linear);
        group.bytes += static_cast<double>(model->recorder().SourceOf(copy.linear).bytes);
      }
      RETURN_IF_ERROR(AddGroupRows(model, group, rows));
    }
  }
  return OkStatus();
}

// The residual is added, normed and quantised, all from memory: x, residual and weight are read,
// residual and result written. What it computes takes a tenth of that.
Status AddNormRow(BenchModel* model, std::vector<RooflineRow>* rows) {
  const auto& ops = model->ops();
  const auto norm =
      std::find_if(ops.begin(), ops.end(), [](const auto& op) { return op.op == Op::kNorm; });
  if (norm == ops.end()) return OkStatus();
  RooflineRow row;
  row.kernel = "norm_quantize";
  row.name = StrCat("hidden ", norm->x.cols);
  row.tokens = norm->x.rows;
  const bool quantised = model->cpu().dtype == cpu::ComputeType::kInt8;
  const double out_bytes =
      quantised ? double{sizeof(cpu::ActBlock)} / cpu::kQuantBlock : double{sizeof(float)};
  row.works.resize(1);
  row.works[0].bytes = double{1} * norm->x.rows * norm->x.cols * (3 * sizeof(float) + out_bytes);
  const auto pass = [&](std::vector<double>* seconds) {
    seconds->push_back(SecondsOf([&] {
      model->backend().AddRmsNorm(norm->x, norm->other, *norm->norm, norm->eps, norm->out);
    }));
    return OkStatus();
  };
  return model->Measure(row, pass, rows);
}

// One thread samples; the limit is that it reads the logits once.
Status AddSamplerRows(BenchModel* model, std::vector<RooflineRow>* rows) {
  const uint32_t vocab = model->config().vocab_size;
  std::vector<std::vector<float>> logits;
  for (uint32_t i = 0; i < kSampledRows; ++i) logits.push_back(PeakedLogits(vocab, i));
  SamplingParams greedy, filtered;
  greedy.temperature = 0;
  filtered.temperature = 0.7f;
  filtered.top_k = 40;
  filtered.top_p = 0.9f;
  Sampler sampler(&model->sampler_kernels(), {});
  for (const auto& [name, params] :
       {std::pair("greedy", &greedy), std::pair("temp 0.7 top-k 40 top-p 0.9", &filtered)}) {
    RooflineRow row;
    row.kernel = "sampler";
    row.name = name;
    row.tokens = kSampledRows;
    row.one_thread = true;
    row.works.resize(1);
    row.works[0].bytes = double{kSampledRows} * vocab * sizeof(float);
    const auto sample_all = [&, params = params](std::vector<double>* seconds) {
      Status status;
      const auto sample = [&](size_t i) {
        const SampleInput input{.params = *params, .position = static_cast<uint32_t>(i)};
        status.Update(sampler.Sample(logits[i], input, nullptr).status());
      };
      RunSlices(logits.size(), sample, seconds);
      return status;
    };
    RETURN_IF_ERROR(model->Measure(row, sample_all, rows));
  }
  return OkStatus();
}

}  // namespace flotilla::bench
