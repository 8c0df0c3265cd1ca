// GGUF's typed values: scalars, strings and flat arrays of both.
#include <limits>
#include <utility>
#include <vector>

#include "common/checkpoint/gguf_cursor.h"

namespace flotilla::internal {
namespace {

enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

constexpr uint64_t kAnyLength = std::numeric_limits<uint64_t>::max();

Status ReadBool(Cursor* cursor, std::string_view field, bool* value) {
  const Cursor start = *cursor;
  uint8_t byte = 0;
  RETURN_IF_ERROR(cursor->Read(field, &byte));
  if (byte > 1) return start.Error(field, StrCat("a bool is 0 or 1, not ", byte));
  *value = byte != 0;
  return OkStatus();
}

// Reads a T and stores it as the Value's alternative Wide.
template <typename T, typename Wide>
Status ReadScalar(Cursor* cursor, std::string_view field, GgufFile::Value* value) {
  T raw{};
  RETURN_IF_ERROR(cursor->Read(field, &raw));
  value->emplace<Wide>(raw);
  return OkStatus();
}

// `count` was checked against the bytes left and the budget of values.
template <typename T, typename Wide>
Status ReadNumbers(Cursor* cursor, std::string_view field, uint64_t count, GgufFile::Value* value) {
  std::vector<Wide> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const Cursor start = *cursor;
    T raw{};
    RETURN_IF_ERROR(cursor->Read(field, &raw));
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (raw > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return start.Error(field, StrCat("element ", i, " does not fit 63 bits"));
      }
    }
    values.push_back(static_cast<Wide>(raw));
  }
  *value = std::move(values);
  return OkStatus();
}

Status ReadBools(Cursor* cursor, std::string_view field, uint64_t count, GgufFile::Value* value) {
  std::vector<int64_t> values(count);
  for (int64_t& element : values) {
    bool flag = false;
    RETURN_IF_ERROR(ReadBool(cursor, field, &flag));
    element = flag ? 1 : 0;
  }
  *value = std::move(values);
  return OkStatus();
}

Status ReadStrings(Cursor* cursor, std::string_view field, uint64_t count, GgufFile::Value* value) {
  std::vector<std::string_view> values(count);
  for (std::string_view& element : values) {
    RETURN_IF_ERROR(cursor->ReadString(field, kAnyLength, &element));
  }
  *value = std::move(values);
  return OkStatus();
}

// Bytes of a scalar of `type`, for a string its least; 0 for a type that is no scalar.
uint64_t MinScalarBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
    case kString:
      return 8;
    default:
      return 0;
  }
}

Status ReadArray(Cursor* cursor, std::string_view field, uint64_t* values_left,
                 GgufFile::Value* value) {
  const Cursor start = *cursor;
  uint32_t type = 0;
  uint64_t count = 0;
  RETURN_IF_ERROR(cursor->Read(field, &type));
  if (type == kArray) return start.Error(field, "nested arrays are not supported");
  const uint64_t element_bytes = MinScalarBytes(type);
  if (element_bytes == 0) {
    return start.Error(field, StrCat("unknown array element type ", type));
  }
  RETURN_IF_ERROR(cursor->Read(field, &count));
  if (count > cursor->remaining() / element_bytes) {
    return start.Error(field,
                       StrCat("claims ", count, " elements, more than the ", cursor->remaining(),
                              " bytes left can hold; the file is "
                              "truncated or damaged, download it again"));
  }
  if (count > *values_left) {
    return start.Error(field, StrCat("claims ", count, " elements; a file may have ",
                                     kMaxArrayValues, " in all its arrays"));
  }
  *values_left -= count;
  switch (type) {
    case kUint8:
      return ReadNumbers<uint8_t, int64_t>(cursor, field, count, value);
    case kInt8:
      return ReadNumbers<int8_t, int64_t>(cursor, field, count, value);
    case kUint16:
      return ReadNumbers<uint16_t, int64_t>(cursor, field, count, value);
    case kInt16:
      return ReadNumbers<int16_t, int64_t>(cursor, field, count, value);
    case kUint32:
      return ReadNumbers<uint32_t, int64_t>(cursor, field, count, value);
    case kInt32:
      return ReadNumbers<int32_t, int64_t>(cursor, field, count, value);
    case kUint64:
      return ReadNumbers<uint64_t, int64_t>(cursor, field, count, value);
    case kInt64:
      return ReadNumbers<int64_t, int64_t>(cursor, field, count, value);
    case kFloat32:
      return ReadNumbers<float, double>(cursor, field, count, value);
    case kFloat64:
      return ReadNumbers<double, double>(cursor, field, count, value);
    case kBool:
      return ReadBools(cursor, field, count, value);
    default:
      return ReadStrings(cursor, field, count, value);
  }
}

}  // namespace

Status ReadGgufValue(Cursor* cursor, std::string_view field, uint64_t* values_left,
                     GgufFile::Value* value) {
  const Cursor start = *cursor;
  uint32_t type = 0;
  RETURN_IF_ERROR(cursor->Read(field, &type));
  switch (type) {
    case kUint8:
      return ReadScalar<uint8_t, uint64_t>(cursor, field, value);
    case kUint16:
      return ReadScalar<uint16_t, uint64_t>(cursor, field, value);
    case kUint32:
      return ReadScalar<uint32_t, uint64_t>(cursor, field, value);
    case kUint64:
      return ReadScalar<uint64_t, uint64_t>(cursor, field, value);
    case kInt8:
      return ReadScalar<int8_t, int64_t>(cursor, field, value);
    case kInt16:
      return ReadScalar<int16_t, int64_t>(cursor, field, value);
    case kInt32:
      return ReadScalar<int32_t, int64_t>(cursor, field, value);
    case kInt64:
      return ReadScalar<int64_t, int64_t>(cursor, field, value);
    case kFloat32:
      return ReadScalar<float, double>(cursor, field, value);
    case kFloat64:
      return ReadScalar<double, double>(cursor, field, value);
    case kBool:
      return ReadBool(cursor, field, &value->emplace<bool>());
    case kString:
      return cursor->ReadString(field, kAnyLength, &value->emplace<std::string_view>());
    case kArray:
      return ReadArray(cursor, field, values_left, value);
    default:
      return start.Error(field, StrCat("unknown value type ", type));
  }
}

}  // namespace flotilla::internal
