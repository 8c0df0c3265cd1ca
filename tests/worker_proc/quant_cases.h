// Random quantised tensors as a checkpoint has them, and int8 activations, for the tests and the
// benchmark of the integer kernels.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/cpu_features.h"
#include "tests/worker_proc/kernel_cases.h"
#include "tests/worker_proc/tiles_emulated.h"
#include "worker_proc/cpu/isa.h"
#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/cpu/quant_pack.h"

namespace flotilla::cpu::testing {

inline constexpr DType kBlockTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                        DType::kQ8_0};
inline constexpr DType kKTypes[] = {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
inline constexpr DType kQuantTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                        DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// `cols` or a few more, so that they are whole blocks.
inline uint32_t WholeBlocks(DType dtype, uint32_t cols) {
  const uint32_t block = Traits(dtype).block_values;
  return (cols + block - 1) / block * block;
}

// Where a block has its fp16 scale, and its fp16 min if it has one.
inline size_t ScaleAt(DType dtype) { return dtype == DType::kQ6_K ? 208 : 0; }
inline bool HasMin(DType dtype) { return QuantFormatOf(dtype)->has_min; }

// A tensor that owns its bytes.
struct QuantTensor {
  std::vector<uint8_t> bytes;
  TensorView view;
};

inline void SetHalf(uint8_t* to, uint16_t half) { std::memcpy(to, &half, sizeof(half)); }

// Random values; scales and mins of either sign between 2^-9 and 2^-5, near those of a model.
inline std::unique_ptr<QuantTensor> RandomTensor(DType dtype, uint64_t rows, uint64_t cols,
                                                 uint64_t seed) {
  auto tensor = std::make_unique<QuantTensor>();
  tensor->view = {"random", dtype, rows, cols, {}};
  tensor->bytes.resize(rows * tensor->view.row_bytes());
  std::mt19937_64 rng(seed);
  size_t i = 0;
  for (; i + 8 <= tensor->bytes.size(); i += 8) {
    const uint64_t bits = rng();
    std::memcpy(&tensor->bytes[i], &bits, sizeof(bits));
  }
  for (; i < tensor->bytes.size(); ++i) tensor->bytes[i] = static_cast<uint8_t>(rng());
  const auto half = [&] {
    const uint64_t bits = rng();
    return static_cast<uint16_t>((bits & 0x83ff) | (6 + (bits >> 20) % 4) << 10);
  };
  for (size_t block = 0; block < tensor->bytes.size(); block += Traits(dtype).block_bytes) {
    SetHalf(&tensor->bytes[block + ScaleAt(dtype)], half());
    if (HasMin(dtype)) SetHalf(&tensor->bytes[block + 2], half());
  }
  tensor->view.data = tensor->bytes;
  return tensor;
}

inline std::vector<uint8_t> PackAll(const TensorView& view) {
  const WeightRows rows[] = {{&view, 0, view.rows}};
  std::vector<uint8_t> packed(PackedQuantBytes(*QuantFormatOf(view.dtype), view.rows, view.cols));
  PackQuantPanels(rows, 0, (view.rows + kPanelRows - 1) / kPanelRows, packed.data());
  return packed;
}

// [tokens, in / 32] blocks of normally distributed activations.
inline std::vector<ActBlock> RandomActs(uint32_t tokens, uint32_t in, uint64_t seed) {
  const std::vector<float> x = RandomFloats(static_cast<size_t>(tokens) * in, seed);
  std::vector<ActBlock> acts(x.size() / kQuantBlock);
  ReferenceQuantKernels().quantize(x.data(), tokens, in, acts.data());
  return acts;
}

// Activations as a table takes them besides: as tiles, or not.
class PackedTokens {
 public:
  PackedTokens(const QuantKernelTable& table, const QuantFormat& format,
               const std::vector<ActBlock>& x, uint32_t tokens, uint32_t in) {
    const uint32_t tiled = TiledTokens(format, tokens);
    if (table.pack_tokens == nullptr || tiled == 0) return;
    const size_t bytes = PackedTokensBytes(tiled, in);
    bytes_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
    const uint32_t tiles = (tiled + kTileTokens - 1) / kTileTokens;
    for (uint32_t i = tiles; i-- > 0;) {  // in any order
      table.pack_tokens({x.data(), in / kQuantBlock, tiled, in, bytes_.get(), i, i + 1});
    }
  }
  const void* get() const { return bytes_.get(); }

 private:
  struct Free {
    void operator()(uint8_t* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<uint8_t, Free> bytes_;
};

// Of the vectors that this machine has.
inline std::vector<const EmulatedTiles*> AllEmulatedTiles() {
  std::vector<const EmulatedTiles*> all = {&EmulatedTilesAvx2()};
  if (CpuHasAvx512Vnni()) all.push_back(&EmulatedTilesAvx512());
  return all;
}

inline std::vector<const QuantKernelTable*> AllQuantTables() {
  std::vector<const QuantKernelTable*> tables;
  for (const EmulatedTiles* tiles : AllEmulatedTiles()) tables.push_back(tiles->table);
  for (const std::string& name : SupportedIsas()) tables.push_back(*SelectQuantKernels(name));
  return tables;
}

}  // namespace flotilla::cpu::testing
