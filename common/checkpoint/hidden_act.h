// The gate of a feed-forward layer: out = act(gate) * up. Named as config.json's hidden_act.
//
// Kernels include this too: nothing but the enum may stand here.
#pragma once

#include <cstdint>

namespace flotilla {

enum class HiddenAct : uint32_t {
  kSilu,      // x / (1 + e^-x)
  kGeluTanh,  // "gelu_pytorch_tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
};

}  // namespace flotilla
