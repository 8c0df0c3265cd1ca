#include "common/checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <utility>

#include "common/checkpoint/gguf_cursor.h"

namespace flotilla {
namespace {

using internal::Cursor;
using internal::kMaxDims;
using internal::kMaxNameBytes;
using internal::Quote;

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
// The least bytes a key (length, type, one byte) and a tensor (length, dimensions, type, offset)
// can take: an absurd count is refused by the file's size before any work.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// ggml's names for the types we do not read, for messages.
const char* GgmlTypeName(uint32_t type) {
  static constexpr const char* kNames[] = {
      "F32",     "F16",     "Q4_0",    "Q4_1",  "removed", "removed", "Q5_0",    "Q5_1",
      "Q8_0",    "Q8_1",    "Q2_K",    "Q3_K",  "Q4_K",    "Q5_K",    "Q6_K",    "Q8_K",
      "IQ2_XXS", "IQ2_XS",  "IQ3_XXS", "IQ1_S", "IQ4_NL",  "IQ3_S",   "IQ2_S",   "IQ4_XS",
      "I8",      "I16",     "I32",     "I64",   "F64",     "IQ1_M",   "BF16",    "removed",
      "removed", "removed", "TQ1_0",   "TQ2_0", "removed", "removed", "removed", "MXFP4"};
  return type < std::size(kNames) ? kNames[type] : "unknown";
}

struct Counts {
  uint64_t tensors = 0;
  uint64_t keys = 0;
};

Status ReadHeader(Cursor* cursor, Counts* counts) {
  uint32_t magic = 0;
  uint32_t version = 0;
  if (cursor->remaining() < sizeof(magic) || !cursor->Read("magic", &magic).ok() ||
      magic != kMagic) {
    return absl::InvalidArgumentError(
        "not a GGUF file: it does not begin with 'GGUF'; give the path of a .gguf model");
  }
  RETURN_IF_ERROR(cursor->Read("version", &version));
  if (version != kVersion) {
    const bool swapped = version == kVersion << 24;
    return absl::InvalidArgumentError(
        swapped ? std::string("the GGUF is big-endian; convert it with gguf-convert-endian")
                : StrCat("GGUF version ", version, " at byte 4: only version ", kVersion,
                         " is supported; convert the model with a current converter"));
  }
  const Cursor start = *cursor;
  RETURN_IF_ERROR(cursor->Read("tensor_count", &counts->tensors));
  RETURN_IF_ERROR(cursor->Read("metadata_kv_count", &counts->keys));
  if (counts->tensors > cursor->remaining() / kMinTensorBytes) {
    return start.Error("tensor_count", StrCat(counts->tensors, " tensors cannot fit in the ",
                                              cursor->remaining(), " bytes left"));
  }
  if (counts->keys > cursor->remaining() / kMinKeyBytes) {
    return start.Error("metadata_kv_count", StrCat(counts->keys, " keys cannot fit in the ",
                                                   cursor->remaining(), " bytes left"));
  }
  return OkStatus();
}

struct TensorEntry {
  TensorView view;  // without data
  uint64_t offset = 0;
  uint64_t size = 0;
};

bool Multiply(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// The dimensions of one tensor: the first is the row length, the others multiply to rows.
Status ReadDims(Cursor* cursor, const std::string& field, TensorView* view) {
  const Cursor start = *cursor;
  uint32_t num_dims = 0;
  RETURN_IF_ERROR(cursor->Read(field, &num_dims));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return start.Error(field,
                       StrCat("has ", num_dims, " dimensions; 1 to ", kMaxDims, " are allowed"));
  }
  view->rows = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    RETURN_IF_ERROR(cursor->Read(field, &dim));
    if (dim == 0) return start.Error(field, StrCat("dimension ", i, " is 0"));
    if (i == 0) {
      view->cols = dim;
    } else if (!Multiply(view->rows, dim, &view->rows)) {
      return start.Error(field, "the product of its dimensions overflows 64 bits");
    }
  }
  return OkStatus();
}

Status ReadTensorEntry(Cursor* cursor, uint64_t index, uint64_t alignment, TensorEntry* entry) {
  TensorView& view = entry->view;
  const Cursor start = *cursor;
  RETURN_IF_ERROR(cursor->ReadString(StrCat("name of tensor ", index), kMaxNameBytes, &view.name));
  if (view.name.empty()) return start.Error(StrCat("tensor ", index), "has an empty name");
  const std::string field = StrCat("tensor ", Quote(view.name));
  RETURN_IF_ERROR(ReadDims(cursor, field, &view));
  uint32_t type = 0;
  const Cursor at_type = *cursor;
  RETURN_IF_ERROR(cursor->Read(field, &type));
  const DTypeTraits* traits = FindDType(type);
  if (traits == nullptr) {
    return at_type.Error(field,
                         StrCat("has unsupported type ", GgmlTypeName(type), " (", type,
                                "); supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
                                "Q4_K, Q5_K, Q6_K"));
  }
  view.dtype = static_cast<DType>(type);
  if (view.cols % traits->block_values != 0) {
    return at_type.Error(field, StrCat("has rows of ", view.cols, " values; ", traits->name,
                                       " needs a multiple of ", traits->block_values));
  }
  if (!Multiply(view.cols / traits->block_values, traits->block_bytes, &entry->size) ||
      !Multiply(entry->size, view.rows, &entry->size)) {
    return at_type.Error(field, "its size in bytes overflows 64 bits");
  }
  const Cursor at_offset = *cursor;
  RETURN_IF_ERROR(cursor->Read(field, &entry->offset));
  if (entry->offset % alignment != 0) {
    return at_offset.Error(
        field, StrCat("offset ", entry->offset, " is not a multiple of the alignment ", alignment));
  }
  return OkStatus();
}

Status CheckNoOverlap(const std::vector<TensorEntry>& entries) {
  std::vector<const TensorEntry*> sorted;
  sorted.reserve(entries.size());
  for (const TensorEntry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    // Each begin + size was checked not to overflow.
    if (sorted[i - 1]->offset + sorted[i - 1]->size > sorted[i]->offset) {
      return absl::InvalidArgumentError(StrCat("tensors ", Quote(sorted[i - 1]->view.name), " and ",
                                               Quote(sorted[i]->view.name),
                                               " overlap; the file is damaged"));
    }
  }
  return OkStatus();
}

using Metadata = std::map<std::string, GgufFile::Value, std::less<>>;

Status ReadMetadata(Cursor* cursor, uint64_t num_keys, Metadata* metadata) {
  uint64_t values_left = internal::kMaxArrayValues;
  for (uint64_t i = 0; i < num_keys; ++i) {
    const Cursor start = *cursor;
    std::string_view key;
    RETURN_IF_ERROR(cursor->ReadString(StrCat("key ", i), kMaxNameBytes, &key));
    if (key.empty()) return start.Error(StrCat("key ", i), "is empty");
    const std::string field = StrCat("value of ", Quote(key));
    GgufFile::Value value;
    RETURN_IF_ERROR(internal::ReadGgufValue(cursor, field, &values_left, &value));
    if (!metadata->emplace(key, std::move(value)).second) {
      return start.Error(StrCat("key ", Quote(key)), "appears twice");
    }
  }
  return OkStatus();
}

Status WrongType(std::string_view key, std::string_view expected) {
  return absl::InvalidArgumentError(StrCat("metadata ", key, " is not ", expected));
}

StatusOr<const GgufFile::Value*> FindKey(const Metadata& metadata, std::string_view key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) {
    return absl::NotFoundError(StrCat("metadata ", key, " is missing"));
  }
  return &it->second;
}

template <typename T>
const T* FindAs(const Metadata& metadata, std::string_view key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? nullptr : std::get_if<T>(&it->second);
}

template <typename T>
StatusOr<T> GetAs(const Metadata& metadata, std::string_view key, std::string_view expected) {
  ASSIGN_OR_RETURN(const GgufFile::Value* value, FindKey(metadata, key));
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr) return WrongType(key, expected);
  return *typed;
}

StatusOr<uint64_t> ReadAlignment(const GgufFile& file) {
  constexpr std::string_view kKey = "general.alignment";
  if (!file.metadata().contains(kKey)) return kDefaultAlignment;
  ASSIGN_OR_RETURN(const uint64_t alignment, file.GetUint(kKey));
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
    return absl::InvalidArgumentError(StrCat("metadata general.alignment is ", alignment,
                                             "; it must be a power of two from 8 to ",
                                             kMaxAlignment));
  }
  return alignment;
}

StatusOr<std::vector<TensorEntry>> ReadTensorTable(Cursor* cursor, uint64_t num_tensors,
                                                   uint64_t alignment) {
  std::vector<TensorEntry> entries(num_tensors);  // bounded by the file's size: ReadHeader
  std::set<std::string_view> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    const Cursor start = *cursor;
    RETURN_IF_ERROR(ReadTensorEntry(cursor, i, alignment, &entries[i]));
    if (!names.insert(entries[i].view.name).second) {
      return start.Error(StrCat("tensor ", Quote(entries[i].view.name)), "appears twice");
    }
  }
  return entries;
}

}  // namespace

StatusOr<GgufFile> GgufFile::Parse(std::span<const uint8_t> bytes, Options options) {
  Cursor cursor(bytes);
  Counts counts;
  RETURN_IF_ERROR(ReadHeader(&cursor, &counts));
  GgufFile file;
  RETURN_IF_ERROR(ReadMetadata(&cursor, counts.keys, &file.metadata_));
  ASSIGN_OR_RETURN(const uint64_t alignment, ReadAlignment(file));
  ASSIGN_OR_RETURN(const std::vector<TensorEntry> entries,
                   ReadTensorTable(&cursor, counts.tensors, alignment));
  file.header_bytes_ = cursor.offset();
  // header_bytes_ <= bytes.size(), far from overflow.
  const uint64_t data_begin = (file.header_bytes_ + alignment - 1) / alignment * alignment;
  file.tensors_.reserve(entries.size());
  for (const TensorEntry& entry : entries) {
    uint64_t begin = 0;
    uint64_t end = 0;
    if (__builtin_add_overflow(data_begin, entry.offset, &begin) ||
        __builtin_add_overflow(begin, entry.size, &end)) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", Quote(entry.view.name), ": offset plus size overflows 64 bits"));
    }
    TensorView view = entry.view;
    if (!options.metadata_only) {
      if (end > bytes.size()) {
        return absl::InvalidArgumentError(StrCat("the file is truncated: it has ", bytes.size(),
                                                 " bytes but tensor ", Quote(view.name), " needs ",
                                                 end, "; download it again"));
      }
      view.data = bytes.subspan(begin, entry.size);
    }
    file.tensors_.push_back(view);
  }
  RETURN_IF_ERROR(CheckNoOverlap(entries));
  return file;
}

Status GgufFile::Join(const GgufFile& other) {
  std::set<std::string_view> names;
  for (const TensorView& view : tensors_) names.insert(view.name);
  for (const TensorView& view : other.tensors_) {
    if (!names.insert(view.name).second) {
      return absl::InvalidArgumentError(
          StrCat("tensor ", Quote(view.name), " is in a file before it, too"));
    }
    tensors_.push_back(view);
  }
  return OkStatus();
}

StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  return GetAs<std::string_view>(metadata_, key, "a string");
}

StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  ASSIGN_OR_RETURN(const Value* value, FindKey(metadata_, key));
  if (const auto* number = std::get_if<uint64_t>(value)) return *number;
  if (const auto* number = std::get_if<int64_t>(value); number != nullptr && *number >= 0) {
    return static_cast<uint64_t>(*number);
  }
  return WrongType(key, "an unsigned integer");
}

StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  return GetAs<double>(metadata_, key, "a float");
}

StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  return GetAs<bool>(metadata_, key, "a bool");
}

const std::vector<std::string_view>* GgufFile::FindStrings(std::string_view key) const {
  return FindAs<std::vector<std::string_view>>(metadata_, key);
}

const std::vector<int64_t>* GgufFile::FindInts(std::string_view key) const {
  return FindAs<std::vector<int64_t>>(metadata_, key);
}

const std::vector<double>* GgufFile::FindFloats(std::string_view key) const {
  return FindAs<std::vector<double>>(metadata_, key);
}

}  // namespace flotilla
