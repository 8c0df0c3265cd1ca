// From a checkpoint's quantised rows to the panels of the integer kernels (quant_kernels.h).
//
// Units: rows, panels of 16 rows, bytes. Threads: disjoint ranges of panels may be packed by
// different threads at once. Ownership: the caller owns `packed`. Errors: none; shapes are CHECKed.
// Source: ours; the block types are ggml's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/checkpoint/checkpoint.h"
#include "worker_proc/cpu/quant_kernels.h"
#include "worker_proc/model/backend.h"

namespace flotilla::cpu {

// Null if the integer kernels have no format for `dtype`.
std::optional<QuantFormat> QuantFormatOf(DType dtype);

// Bytes of all panels of a matrix; in_features is a multiple of kQuantBlock, of 8 for the K types.
size_t PackedQuantBytes(const QuantFormat& format, uint64_t out_features, uint64_t in_features);

// Packs the panels [panel_begin, panel_end) of the concatenation of `rows`, which are of one type
// and one width. `packed` is where panel 0 lies.
void PackQuantPanels(std::span<const WeightRows> rows, uint64_t panel_begin, uint64_t panel_end,
                     uint8_t* packed);

// A row of a packed matrix as floats: the bits of DequantizeRows on what was packed.
void UnpackQuantRow(const QuantFormat& format, const uint8_t* packed, uint64_t in_features,
                    uint64_t row, float* out);

// One weight of a packed matrix, exactly but for the sum with a min: see quant_kernels.h.
double UnpackQuantWeight(const QuantFormat& format, const uint8_t* packed, uint64_t in_features,
                         uint64_t row, uint64_t k);

}  // namespace flotilla::cpu
