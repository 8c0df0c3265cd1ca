#include "common/checkpoint/fp8_config.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>

#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

constexpr char kWhatThereIs[] =
    "supported are F32, F16 and BF16 weights, 8-bit floats (fp8, compressed-tensors with "
    "float-quantized, modelopt with FP8), and .gguf files of all kinds";

Status ReadBlock(const JsonObject& json, std::string_view key, Fp8Config* config) {
  if (!json.Has(key)) return OkStatus();
  const boost::json::array* array = json.value().at({key.data(), key.size()}).if_array();
  if (array == nullptr || array->size() != 2) return json.Error(key, "must be two numbers");
  uint32_t sides[2];
  for (size_t i = 0; i < 2; ++i) {
    const int64_t* side = (*array)[i].if_int64();
    if (side == nullptr || *side < 1 || *side > 1 << 20) {
      return json.Error(key, "must be two numbers from 1 to 1048576");
    }
    sides[i] = static_cast<uint32_t>(*side);
  }
  config->block_rows = sides[0];
  config->block_cols = sides[1];
  return OkStatus();
}

// Of each group: 8 bits, floats.
Status ReadGroups(const JsonObject& json, Fp8Config* config) {
  ASSIGN_OR_RETURN(const JsonObject groups, json.Object("config_groups"));
  for (const auto& member : groups.value()) {
    ASSIGN_OR_RETURN(const JsonObject group,
                     groups.Object({member.key().data(), member.key().size()}));
    ASSIGN_OR_RETURN(const JsonObject weights, group.Object("weights"));
    ASSIGN_OR_RETURN(const std::string_view type, weights.String("type"));
    ASSIGN_OR_RETURN(const uint64_t bits, weights.Uint("num_bits"));
    if (type != "float" || bits != 8) {
      return weights.Error("num_bits", StrCat("is ", bits, " of type ", Quote(type),
                                              "; only float of 8 bits is supported"));
    }
    RETURN_IF_ERROR(ReadBlock(weights, "block_structure", config));
  }
  return OkStatus();
}

bool EndsWith(std::string_view name, std::string_view end, std::string_view* rest) {
  if (!name.ends_with(end)) return false;
  *rest = name.substr(0, name.size() - end.size());
  return true;
}

}  // namespace

StatusOr<std::optional<Fp8Config>> ReadFp8Config(const JsonObject& config) {
  if (!config.Has("quantization_config")) return std::optional<Fp8Config>();
  ASSIGN_OR_RETURN(const JsonObject json, config.Object("quantization_config"));
  const auto unsupported = [&](std::string_view key, std::string_view value) {
    return json.Error(key, StrCat("is ", Quote(value), ", which is not supported; ", kWhatThereIs));
  };
  ASSIGN_OR_RETURN(const std::string_view method, json.String("quant_method"));
  Fp8Config fp8;
  if (method == "fp8") {
    RETURN_IF_ERROR(ReadBlock(json, "weight_block_size", &fp8));
  } else if (method == "compressed-tensors") {
    ASSIGN_OR_RETURN(const std::string_view format, json.String("format"));
    if (format != "float-quantized") return unsupported("format", format);
    RETURN_IF_ERROR(ReadGroups(json, &fp8));
  } else if (method == "modelopt") {
    ASSIGN_OR_RETURN(const std::string_view algorithm, json.String("quant_algo"));
    if (algorithm != "FP8") return unsupported("quant_algo", algorithm);
  } else {
    return unsupported("quant_method", method);
  }
  return std::optional(fp8);
}

std::string_view MatrixOfFactors(std::string_view name) {
  for (const std::string_view end : {"_scale_inv", "_scale"}) {
    std::string_view matrix;
    if (EndsWith(name, end, &matrix) && matrix.ends_with(".weight")) return matrix;
  }
  return "";
}

bool IsUnusedFactor(std::string_view name) {
  return name.ends_with(".input_scale") || name.ends_with(".k_scale") ||
         name.ends_with(".v_scale") || name.ends_with(".q_scale");
}

StatusOr<ScaleGrid> MakeScaleGrid(const Fp8Config& config, const TensorView& matrix,
                                  const TensorView& factors) {
  const auto wrong = [&](std::string_view problem) {
    return absl::InvalidArgumentError(StrCat("tensor ", Quote(factors.name), " ", problem));
  };
  if (matrix.dtype != DType::kF8E4M3) {
    return wrong(StrCat("has factors for a matrix of ", Traits(matrix.dtype).name));
  }
  if (IsQuantised(factors.dtype) || factors.dtype == DType::kF8E4M3) {
    return wrong(StrCat("is ", Traits(factors.dtype).name, "; factors are F32, F16 or BF16"));
  }
  const uint64_t count = factors.rows * factors.cols;
  ScaleGrid grid;
  if (count == 1) {
    grid.block_rows = matrix.rows;
    grid.block_cols = matrix.cols;
  } else if (config.block_rows != 0) {
    grid.block_rows = config.block_rows;
    grid.block_cols = config.block_cols;
  } else {
    grid.block_rows = 1;
    grid.block_cols = matrix.cols;
  }
  const uint64_t rows = (matrix.rows + grid.block_rows - 1) / grid.block_rows;
  const uint64_t cols = (matrix.cols + grid.block_cols - 1) / grid.block_cols;
  const bool a_row_each = cols == 1 && count == rows;  // as [rows] or [rows, 1]
  if (!a_row_each && (factors.rows != rows || factors.cols != cols)) {
    return wrong(StrCat("has shape [", factors.rows, ", ", factors.cols, "]; its matrix [",
                        matrix.rows, ", ", matrix.cols, "] asks for [", rows, ", ", cols, "]"));
  }
  grid.factors.resize(count);
  DequantizeRows(factors, 0, factors.rows, grid.factors.data());
  const auto finite = [](float factor) { return std::isfinite(factor); };
  if (!std::all_of(grid.factors.begin(), grid.factors.end(), finite)) {
    return wrong("has a factor that is not finite");
  }
  return grid;
}

}  // namespace flotilla::internal
