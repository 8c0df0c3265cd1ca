#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstring>
#include <optional>

#include "common/checkpoint/gguf_cursor.h"
#include "common/checkpoint/json_object.h"

namespace flotilla {
namespace {

using internal::JsonObject;
using internal::kMaxDims;
using internal::kMaxNameBytes;
using internal::Quote;

constexpr uint64_t kMaxHeaderBytes = 32u << 20;
constexpr size_t kMaxTensors = 1 << 17;

struct Entry {
  std::string_view name;
  TensorView view;  // without data
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::optional<DType> DTypeOf(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F16") return DType::kF16;
  if (name == "BF16") return DType::kBF16;
  if (name == "F8_E4M3") return DType::kF8E4M3;
  return std::nullopt;
}

StatusOr<std::vector<uint64_t>> Numbers(const JsonObject& json, std::string_view key) {
  const boost::json::value* value = json.value().if_contains({key.data(), key.size()});
  const boost::json::array* array = value == nullptr ? nullptr : value->if_array();
  if (array == nullptr) return json.Error(key, "must be an array of numbers");
  std::vector<uint64_t> numbers;
  for (const boost::json::value& element : *array) {
    const int64_t* number = element.if_int64();
    if (number == nullptr || *number < 0) {
      return json.Error(key, "must be an array of unsigned integers");
    }
    numbers.push_back(static_cast<uint64_t>(*number));
  }
  return numbers;
}

// The last dimension is a row's length, the others multiply to rows.
Status ReadShape(const JsonObject& json, TensorView* view) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> shape, Numbers(json, "shape"));
  if (shape.size() > kMaxDims) {
    return json.Error(
        "shape", StrCat("has ", shape.size(), " dimensions; up to ", kMaxDims, " are allowed"));
  }
  view->rows = view->cols = 1;  // of a single number
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return json.Error("shape", StrCat("has a 0 as dimension ", i));
    if (i + 1 == shape.size()) {
      view->cols = shape[i];
    } else if (__builtin_mul_overflow(view->rows, shape[i], &view->rows)) {
      return json.Error("shape", "overflows 64 bits");
    }
  }
  return OkStatus();
}

StatusOr<Entry> ReadEntry(std::string_view name, const JsonObject& json, uint64_t data_bytes) {
  Entry entry;
  entry.name = name;
  ASSIGN_OR_RETURN(const std::string_view type, json.String("dtype"));
  const std::optional<DType> dtype = DTypeOf(type);
  if (!dtype.has_value()) {
    return json.Error("dtype", StrCat("is ", Quote(type), "; supported: F32, F16, BF16, F8_E4M3"));
  }
  entry.view.dtype = *dtype;
  RETURN_IF_ERROR(ReadShape(json, &entry.view));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> offsets, Numbers(json, "data_offsets"));
  if (offsets.size() != 2) return json.Error("data_offsets", "must be two numbers");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return json.Error("data_offsets",
                      StrCat("are ", entry.begin, " and ", entry.end, ", not within the ",
                             data_bytes, " bytes of data; the file is truncated or damaged"));
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(entry.view.cols, Traits(*dtype).block_bytes, &bytes) ||
      __builtin_mul_overflow(bytes, entry.view.rows, &bytes)) {
    return json.Error("shape", "overflows 64 bits");
  }
  if (bytes != entry.end - entry.begin) {
    return json.Error("data_offsets", StrCat("hold ", entry.end - entry.begin,
                                             " bytes; shape and dtype ask for ", bytes));
  }
  return entry;
}

Status CheckCover(const std::vector<Entry>& sorted, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const Entry& entry : sorted) {
    if (entry.begin != at) {
      return absl::InvalidArgumentError(StrCat(
          "tensor ", Quote(entry.name), " begins at byte ", entry.begin, " of the data, ",
          entry.begin < at ? "within the one before" : "behind a gap", "; the file is damaged"));
    }
    at = entry.end;
  }
  if (at == data_bytes) return OkStatus();
  return absl::InvalidArgumentError(StrCat("the header describes ", at, " bytes of data, but ",
                                           data_bytes, " follow; the file is damaged"));
}

}  // namespace

StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::span<const uint8_t> bytes) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return absl::InvalidArgumentError("not a safetensors file: it has fewer than 8 bytes");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const std::span<const uint8_t> rest = bytes.subspan(sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > rest.size()) {
    return absl::InvalidArgumentError(StrCat(
        "not a safetensors file, or truncated: its header would have ", header_bytes,
        " bytes; at most ", std::min<uint64_t>(kMaxHeaderBytes, rest.size()), " are possible"));
  }
  const std::span<const uint8_t> data = rest.subspan(header_bytes);
  ASSIGN_OR_RETURN(
      const boost::json::value header,
      internal::ParseJsonObject(
          "header", {reinterpret_cast<const char*>(rest.data()), header_bytes}, kMaxHeaderBytes));
  std::vector<Entry> entries;
  for (const auto& member : header.get_object()) {
    const std::string_view name(member.key().data(), member.key().size());
    if (name == "__metadata__") continue;  // strings for people
    const boost::json::object* object = member.value().if_object();
    if (object == nullptr || name.empty() || name.size() > kMaxNameBytes ||
        entries.size() == kMaxTensors) {
      return absl::InvalidArgumentError(
          StrCat("header: ", Quote(name), " is not a tensor's name and place, or there are more ",
                 "than ", kMaxTensors));
    }
    const JsonObject json(object, StrCat("tensor ", Quote(name), ": "));
    ASSIGN_OR_RETURN(const Entry entry, ReadEntry(name, json, data.size()));
    entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  RETURN_IF_ERROR(CheckCover(entries, data.size()));
  SafetensorsFile file;
  for (const Entry& entry : entries) {
    file.names_.push_back(std::make_unique<std::string>(entry.name));
    file.tensors_.push_back(entry.view);
    file.tensors_.back().name = *file.names_.back();
    file.tensors_.back().data = data.subspan(entry.begin, entry.end - entry.begin);
  }
  return file;
}

}  // namespace flotilla
