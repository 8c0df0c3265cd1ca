// A model folder with matrices of 8-bit floats, as blocks of 128 x 128 and with a factor a row: on
// the CPU and on a CUDA device, expanded or packed, bit for bit what a folder with the numbers that
// they stand for, in bfloat16, gives.
#include <gtest/gtest.h>

#include "common/checkpoint/float8.h"
#include "common/checkpoint/half.h"
#include "tests/support/safetensors_builder.h"
#include "tests/support/temp_folder.h"
#include "tests/worker_proc/cuda/model_setup.h"

namespace flotilla {
namespace {

using cuda::Element;
using cuda::testing::ExpectEqualBits;
using cuda::testing::MayBeRanks;
using cuda::testing::NoDevice;
using cuda::testing::OpenBackend;
using testing::BytesOf;
using testing::DriverRequest;
using testing::PlanDriver;
using testing::RankThreads;
using testing::RankThreadsOptions;
using testing::SafetensorsBuilder;

constexpr uint64_t kHidden = 256, kFfn = 384, kVocab = 90, kLayers = 2;
constexpr char kConfig[] = R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 256,
  "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 90, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true)";

struct Factors {
  const char* name;
  uint64_t block_rows, block_cols;  // of one factor
  const char* config;
};
constexpr Factors kBlocks = {"weight_scale_inv", 128, 128,
                             R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"};
constexpr Factors kRows = {
    "weight_scale", 1, 1 << 20,
    R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
        {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})"};

// The same model twice: with 8-bit floats, and with what they become.
class Float8Model {
 public:
  explicit Float8Model(const Factors& factors) : factors_(factors), random_(3) {
    Floats("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    Floats("model.norm.weight", {kHidden}, 1);
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      const std::string at = StrCat("model.layers.", layer, ".");
      Floats(at + "input_layernorm.weight", {kHidden}, 1);
      Floats(at + "post_attention_layernorm.weight", {kHidden}, 1);
      Floats(at + "self_attn.q_norm.weight", {64}, 1);
      Floats(at + "self_attn.k_norm.weight", {64}, 1);
      Matrix(at + "self_attn.q_proj", 256, kHidden);
      Matrix(at + "self_attn.k_proj", 128, kHidden);
      Matrix(at + "self_attn.v_proj", 128, kHidden);
      Matrix(at + "self_attn.o_proj", kHidden, 256);
      Matrix(at + "mlp.gate_proj", kFfn, kHidden);
      Matrix(at + "mlp.up_proj", kFfn, kHidden);
      Matrix(at + "mlp.down_proj", kHidden, kFfn);
    }
  }
  std::unique_ptr<Checkpoint> Open(bool float8) const {
    const testing::TempFolder folder;  // the mapping stays
    const std::string config =
        float8 ? StrCat(kConfig, ", \"quantization_config\": ", factors_.config, "}")
               : StrCat(kConfig, "}");
    testing::WriteBytes(folder.path() + "/config.json", config);
    testing::WriteBytes(folder.path() + "/model.safetensors",
                        (float8 ? float8_ : expanded_).Build());
    auto opened = OpenCheckpoint(folder.path());
    CHECK_OK(opened.status());
    return std::move(*opened);
  }

 private:
  void Floats(const std::string& name, const std::vector<uint64_t>& shape, float deviation) {
    uint64_t count = 1;
    for (const uint64_t dim : shape) count *= dim;
    std::normal_distribution<float> normal(0, deviation);
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = FloatToBFloat16(normal(random_));
    for (SafetensorsBuilder* file : {&float8_, &expanded_}) {
      file->Add(name, "BF16", shape, BytesOf(values));
    }
  }
  void Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    const uint64_t block_cols = std::min(factors_.block_cols, cols);
    const uint64_t grid_rows = (rows + factors_.block_rows - 1) / factors_.block_rows;
    const uint64_t grid_cols = (cols + block_cols - 1) / block_cols;
    std::uniform_real_distribution<float> factor(1e-4f, 4e-4f);
    std::vector<float> factors(grid_rows * grid_cols);
    for (float& f : factors) f = factor(random_);
    std::vector<uint8_t> values(rows * cols);
    std::vector<uint16_t> expanded(values.size());
    for (uint64_t i = 0; i < values.size(); ++i) {
      do values[i] = static_cast<uint8_t>(random_());
      while (IsNanE4M3(values[i]));
      const uint64_t at = i / cols / factors_.block_rows * grid_cols + i % cols / block_cols;
      expanded[i] = FloatToBFloat16(E4M3ToFloat(values[i]) * factors[at]);
    }
    float8_.Add(name + ".weight", "F8_E4M3", {rows, cols}, BytesOf(values));
    float8_.Add(StrCat(name, ".", factors_.name), "F32", {grid_rows, grid_cols}, BytesOf(factors));
    expanded_.Add(name + ".weight", "BF16", {rows, cols}, BytesOf(expanded));
  }

  const Factors factors_;
  std::mt19937 random_;
  SafetensorsBuilder float8_, expanded_;
};

std::vector<DriverRequest> Answers(const Checkpoint& checkpoint,
                                   const RankThreadsOptions& options) {
  RankThreads ranks(&checkpoint, options);
  std::vector<DriverRequest> requests;
  for (const uint32_t length : {3u, 70u}) {
    DriverRequest& request = requests.emplace_back();
    for (uint32_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<int32_t>((7 + 13 * i) % kVocab));
    }
    request.max_new_tokens = 5;
    request.sampling.temperature = 0;
    request.sampling.num_prompt_logprobs = 5;
  }
  PlanDriver driver({.chunk_size = 64, .num_pages = ranks.num_pages()},
                    [&](const StepPlan& plan) { return ranks.Execute(plan); });
  driver.Run(&requests);
  return requests;
}

class Float8ModelTest : public ::testing::TestWithParam<Factors> {};

TEST_P(Float8ModelTest, HasTheBitsOfTheNumbersItStandsFor) {
  if (const std::string reason = NoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  const Float8Model model(GetParam());
  const auto float8 = model.Open(true);
  const auto expanded = model.Open(false);
  for (const cpu::ComputeType dtype :
       {cpu::ComputeType::kFloat32, cpu::ComputeType::kInt8OfFloats}) {
    RankThreadsOptions options;
    options.dtype = dtype;
    const auto answers = Answers(*float8, options);
    if (dtype == cpu::ComputeType::kFloat32) {
      ExpectEqualBits(answers, Answers(*expanded, options));
    } else {
      EXPECT_EQ(answers[0].output.size(), 5u) << "the 8-bit floats become 8-bit integers";
    }
  }
  const auto on_device = [](bool packed, uint32_t tp) {
    RankThreadsOptions options;
    options.make_backend = [packed] {
      return OpenBackend({.dtype = Element::kBFloat16, .keep_packed = packed});
    };
    options.tp = tp;
    return options;
  };
  const auto expected = Answers(*expanded, on_device(false, 1));
  ExpectEqualBits(Answers(*float8, on_device(false, 1)), expected);
  for (const uint32_t tp : {1u, 2u}) {
    if (MayBeRanks(tp)) ExpectEqualBits(Answers(*float8, on_device(true, tp)), expected);
  }
  const auto bytes = [&](bool packed) {
    const TensorView& view = *float8->Find("model.layers.0.mlp.up_proj.weight");
    return OpenBackend({.keep_packed = packed})->WeightBytes(view);
  };
  EXPECT_EQ(bytes(false), kFfn * kHidden * 2);
  EXPECT_EQ(bytes(true), kFfn * kHidden / 128 * 132);
}

INSTANTIATE_TEST_SUITE_P(Factors, Float8ModelTest, ::testing::Values(kBlocks, kRows),
                         [](const auto& info) {
                           return std::string(info.param.block_rows == 1 ? "Rows" : "Blocks");
                         });

}  // namespace
}  // namespace flotilla
