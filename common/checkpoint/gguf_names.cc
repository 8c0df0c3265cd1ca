// GGUF's tensor names and Hugging Face's for the same tensors.
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr std::array<NamePair, 3> kModelNames{{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};

constexpr std::array<NamePair, 3> kSandwichNames{{
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
}};

constexpr std::array<NamePair, 16> kLayerNames{{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
}};

template <size_t kSize>
std::string_view Lookup(const std::array<NamePair, kSize>& names, std::string_view gguf_name) {
  for (const auto& [gguf, hf] : names) {
    if (gguf == gguf_name) return hf;
  }
  return {};
}

// Decimal without leading zeros, at most five digits: two spellings never name one layer.
bool IsLayerNumber(std::string_view text) {
  if (text.empty() || text.size() > 5 || (text.size() > 1 && text[0] == '0')) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

}  // namespace

std::string HfTensorName(std::string_view gguf_name, bool sandwich_norms) {
  const size_t last_dot = gguf_name.rfind('.');
  if (last_dot == std::string_view::npos) return {};
  const std::string_view suffix = gguf_name.substr(last_dot);  // ".weight" or ".bias"
  if (suffix != ".weight" && suffix != ".bias") return {};
  std::string_view stem = gguf_name.substr(0, last_dot);

  constexpr std::string_view kLayerPrefix = "blk.";
  if (stem.substr(0, kLayerPrefix.size()) != kLayerPrefix) {
    const std::string_view hf = Lookup(kModelNames, stem);
    return hf.empty() ? std::string() : StrCat(hf, suffix);
  }
  stem.remove_prefix(kLayerPrefix.size());
  const size_t dot = stem.find('.');
  if (dot == std::string_view::npos || !IsLayerNumber(stem.substr(0, dot))) return {};
  const std::string_view name = stem.substr(dot + 1);
  std::string_view hf = sandwich_norms ? Lookup(kSandwichNames, name) : std::string_view();
  if (hf.empty()) hf = Lookup(kLayerNames, name);
  if (hf.empty()) return {};
  return StrCat("model.layers.", stem.substr(0, dot), ".", hf, suffix);
}

}  // namespace flotilla
