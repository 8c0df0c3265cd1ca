#include "common/checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/gguf_builder.h"

namespace flotilla {
namespace {

using ::flotilla::testing::GgufBuilder;
using ::flotilla::testing::GgufType;
using ::flotilla::testing::TinyLlamaBytes;
using ::testing::HasSubstr;

constexpr uint32_t kF32 = 0;

std::span<const uint8_t> Span(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// Parses from a heap block of exactly this size, so that AddressSanitizer sees one byte too many.
StatusOr<GgufFile> ParseExact(std::string_view bytes, bool metadata_only,
                              std::unique_ptr<uint8_t[]>* storage) {
  *storage = std::make_unique<uint8_t[]>(bytes.size());
  std::memcpy(storage->get(), bytes.data(), bytes.size());
  return GgufFile::Parse({storage->get(), bytes.size()}, {.metadata_only = metadata_only});
}

std::string ErrorOf(const std::string& bytes, bool metadata_only = false) {
  std::unique_ptr<uint8_t[]> storage;
  const auto file = ParseExact(bytes, metadata_only, &storage);
  if (file.ok()) return "parsed";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(file.status().message());
}

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Header of an array value: element type and count.
std::string Array(GgufType type, uint64_t count) { return Bytes(type) + Bytes(count); }

GgufBuilder Small() {
  GgufBuilder builder;
  builder.AddString("general.name", "small");
  builder.AddUint32("a.count", 7);
  builder.AddFloat32("a.float", 1.5f);
  builder.AddBool("a.flag", true);
  builder.AddStrings("a.words", {"x", "", "yz"});
  builder.AddInts("a.ints", {1, -2});
  builder.AddTensor("t.weight", {4, 2}, kF32, std::string(32, '\1'));
  builder.AddTensor("u.weight", {32}, 2, std::string(18, '\2'));
  return builder;
}

TEST(GgufTest, ReadsEveryKindOfValue) {
  GgufBuilder builder = Small();
  builder.AddRaw("b.u8", GgufType::kUint8, "\xff");
  builder.AddRaw("b.i8", GgufType::kInt8, "\xff");
  builder.AddRaw("b.u16", GgufType::kUint16, Bytes<uint16_t>(65535));
  builder.AddRaw("b.i16", GgufType::kInt16, Bytes<int16_t>(-3));
  builder.AddRaw("b.i32", GgufType::kInt32, Bytes<int32_t>(12));
  builder.AddRaw("b.u64", GgufType::kUint64, Bytes<uint64_t>(1) + "");
  builder.AddRaw("b.i64", GgufType::kInt64, Bytes<int64_t>(-5));
  builder.AddRaw("b.f64", GgufType::kFloat64, Bytes<double>(0.25));
  builder.AddRaw("b.floats", GgufType::kArray,
                 Array(GgufType::kFloat32, 2) + Bytes(0.5f) + Bytes(-2.0f));
  builder.AddRaw("b.bools", GgufType::kArray, Array(GgufType::kBool, 2) + std::string("\0\1", 2));
  builder.AddRaw("b.empty", GgufType::kArray, Array(GgufType::kInt32, 0));
  const std::string bytes = builder.Build();
  const auto file = GgufFile::Parse(Span(bytes), {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetString("general.name"), "small");
  EXPECT_EQ(*file->GetUint("a.count"), 7u);
  EXPECT_EQ(*file->GetFloat("a.float"), 1.5);
  EXPECT_TRUE(*file->GetBool("a.flag"));
  EXPECT_THAT(*file->FindStrings("a.words"), ::testing::ElementsAre("x", "", "yz"));
  EXPECT_THAT(*file->FindInts("a.ints"), ::testing::ElementsAre(1, -2));
  EXPECT_EQ(*file->GetUint("b.u8"), 255u);
  EXPECT_EQ(std::get<int64_t>(file->metadata().at("b.i8")), -1);
  EXPECT_EQ(*file->GetUint("b.u16"), 65535u);
  EXPECT_EQ(std::get<int64_t>(file->metadata().at("b.i16")), -3);
  EXPECT_EQ(*file->GetUint("b.i32"), 12u);  // a signed number that is not negative
  EXPECT_EQ(*file->GetUint("b.u64"), 1u);
  EXPECT_FALSE(file->GetUint("b.i64").ok());
  EXPECT_EQ(*file->GetFloat("b.f64"), 0.25);
  EXPECT_THAT(*file->FindFloats("b.floats"), ::testing::ElementsAre(0.5, -2.0));
  EXPECT_THAT(*file->FindInts("b.bools"), ::testing::ElementsAre(0, 1));
  EXPECT_TRUE(file->FindInts("b.empty")->empty());
}

TEST(GgufTest, GettersTellAbsentFromMistyped) {
  const std::string bytes = Small().Build();
  const auto file = GgufFile::Parse(Span(bytes), {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->GetString("nothing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(file->GetString("a.count").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetUint("a.float").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetFloat("a.count").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->GetBool("a.count").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file->FindStrings("a.ints"), nullptr);
  EXPECT_EQ(file->FindInts("nothing"), nullptr);
}

TEST(GgufTest, TensorsAreViewsOfTheFile) {
  const std::string bytes = Small().Build();
  const auto file = GgufFile::Parse(Span(bytes), {});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorView& matrix = file->tensors()[0];
  EXPECT_EQ(matrix.name, "t.weight");
  EXPECT_EQ(matrix.rows, 2u);
  EXPECT_EQ(matrix.cols, 4u);
  EXPECT_EQ(matrix.data.size(), 32u);
  EXPECT_EQ(matrix.data[31], 1);
  const TensorView& vector = file->tensors()[1];
  EXPECT_EQ(vector.rows, 1u);
  EXPECT_EQ(vector.dtype, DType::kQ4_0);
  EXPECT_EQ(vector.data.data() + vector.data.size(),
            reinterpret_cast<const uint8_t*>(bytes.data()) + bytes.size());
}

TEST(GgufTest, HeaderAloneIsEnoughForMetadata) {
  const std::string bytes = Small().Build();
  const auto whole = GgufFile::Parse(Span(bytes), {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::string head = bytes.substr(0, whole->header_bytes());
  std::unique_ptr<uint8_t[]> storage;
  const auto file = ParseExact(head, true, &storage);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetString("general.name"), "small");
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_TRUE(file->tensors()[0].data.empty());
  EXPECT_EQ(file->header_bytes(), whole->header_bytes());
  EXPECT_NE(ErrorOf(head.substr(0, head.size() - 1), true), "parsed");
}

TEST(GgufTest, TruncationAtEveryByteIsRefused) {
  const std::string bytes = Small().Build();
  ASSERT_EQ(ErrorOf(bytes), "parsed");
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string error = ErrorOf(bytes.substr(0, size));
    ASSERT_NE(error, "parsed") << size;
    if (size >= 24) {
      ASSERT_THAT(error, AnyOf(HasSubstr("truncated"), HasSubstr("cannot fit"))) << size;
    }
  }
}

TEST(GgufTest, EveryBitOfAHeaderMayFlip) {
  const std::string good = Small().Build();
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      std::unique_ptr<uint8_t[]> storage;
      const auto file = ParseExact(bytes, false, &storage);
      if (!file.ok()) continue;
      for (const TensorView& view : file->tensors()) {
        ASSERT_EQ(view.data.size(), view.rows * view.row_bytes());
        ASSERT_GE(view.data.data(), storage.get());
        ASSERT_LE(view.data.data() + view.data.size(), storage.get() + bytes.size());
      }
    }
  }
}

// Wherever a count, length, dimension or offset stands, an extreme one is tried.
TEST(GgufTest, EveryFieldMayBeExtreme) {
  const std::string good = Small().Build();
  const uint64_t extremes[] = {0,
                               1,
                               good.size() - 1,
                               good.size() + 1,
                               uint64_t{1} << 24,
                               uint64_t{1} << 31,
                               (uint64_t{1} << 32) - 1,
                               uint64_t{1} << 59,
                               uint64_t{1} << 63,
                               ~uint64_t{31},
                               ~uint64_t{0}};
  size_t refused = 0;
  for (const size_t width : {size_t{4}, size_t{8}}) {
    for (size_t i = 4; i + width <= good.size(); ++i) {
      for (const uint64_t extreme : extremes) {
        std::string bytes = good;
        bytes.replace(i, width, Bytes(extreme).substr(0, width));
        std::unique_ptr<uint8_t[]> storage;
        const auto file = ParseExact(bytes, false, &storage);
        if (!file.ok()) {
          ++refused;
          continue;
        }
        for (const TensorView& view : file->tensors()) {
          ASSERT_EQ(view.data.size(), view.rows * view.row_bytes());
          ASSERT_LE(view.data.data() + view.data.size(), storage.get() + bytes.size());
        }
      }
    }
  }
  EXPECT_GT(refused, good.size());
}

TEST(GgufTest, EveryByteOfATinyModelsHeadMayBeAnything) {
  const std::string good = TinyLlamaBytes();
  const auto whole = GgufFile::Parse(Span(good), {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::string head = good.substr(0, whole->header_bytes());
  size_t refused = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    for (const char byte : {'\0', '\x7f', '\xff'}) {
      std::string bytes = head;
      bytes[i] = byte;
      if (ErrorOf(bytes, true) != "parsed") ++refused;
    }
  }
  EXPECT_GT(refused, head.size() / 4);
}

TEST(GgufTest, HeadersThatAreNotOursSayWhatIsWrong) {
  EXPECT_THAT(ErrorOf("PK\3\4 not a model"), HasSubstr("not a GGUF file"));
  GgufBuilder old = Small();
  old.set_version(2);
  EXPECT_THAT(ErrorOf(old.Build()), HasSubstr("GGUF version 2"));
  GgufBuilder swapped = Small();
  swapped.set_version(0x03000000);
  EXPECT_THAT(ErrorOf(swapped.Build()), HasSubstr("big-endian"));
}

TEST(GgufTest, AbsurdCountsAreRefusedBeforeAnyAllocation) {
  for (const uint64_t count : {uint64_t{1} << 16, uint64_t{1} << 40, uint64_t{1} << 63,
                               std::numeric_limits<uint64_t>::max()}) {
    GgufBuilder tensors = Small();
    tensors.set_tensor_count(count);
    EXPECT_THAT(ErrorOf(tensors.Build()), HasSubstr("tensor_count"));
    GgufBuilder keys = Small();
    keys.set_key_count(count);
    EXPECT_THAT(ErrorOf(keys.Build()), HasSubstr("metadata_kv_count"));
    for (const GgufType type : {GgufType::kUint8, GgufType::kBool, GgufType::kInt16,
                                GgufType::kFloat32, GgufType::kString, GgufType::kFloat64}) {
      GgufBuilder array;
      array.AddRaw("k", GgufType::kArray, Array(type, count));
      EXPECT_THAT(ErrorOf(array.Build()), HasSubstr("value of 'k'"));
    }
    GgufBuilder string;
    string.AddRaw("k", GgufType::kString, Bytes(count));
    EXPECT_THAT(ErrorOf(string.Build()), HasSubstr("value of 'k'"));
  }
}

TEST(GgufTest, ArraysThatWouldGrowManyTimesTheirSizeAreRefused) {
  constexpr uint64_t kLimit = uint64_t{1} << 24;
  GgufBuilder half;
  half.AddRaw("a", GgufType::kArray, Array(GgufType::kUint8, kLimit) + std::string(kLimit, '\1'));
  EXPECT_EQ(ErrorOf(half.Build()), "parsed");
  half.AddRaw("b", GgufType::kArray, Array(GgufType::kUint8, 1) + "\1");
  EXPECT_THAT(ErrorOf(half.Build()), AllOf(HasSubstr("value of 'b'"), HasSubstr("16777216")));
}

TEST(GgufTest, MalformedMetadataIsNamed) {
  GgufBuilder nested;
  nested.AddRaw("k", GgufType::kArray, Array(GgufType::kArray, 1) + Array(GgufType::kUint8, 0));
  EXPECT_THAT(ErrorOf(nested.Build()), HasSubstr("nested arrays"));
  GgufBuilder unknown;
  unknown.AddRaw("k", static_cast<GgufType>(13), "x");
  EXPECT_THAT(ErrorOf(unknown.Build()), HasSubstr("unknown value type 13"));
  GgufBuilder element;
  element.AddRaw("k", GgufType::kArray, Array(static_cast<GgufType>(99), 1) + "x");
  EXPECT_THAT(ErrorOf(element.Build()), HasSubstr("element type 99"));
  GgufBuilder flag;
  flag.AddRaw("k", GgufType::kBool, "\2");
  EXPECT_THAT(ErrorOf(flag.Build()), HasSubstr("a bool is 0 or 1, not 2"));
  GgufBuilder wide;
  wide.AddRaw("k", GgufType::kArray, Array(GgufType::kUint64, 1) + Bytes(~uint64_t{0}));
  EXPECT_THAT(ErrorOf(wide.Build()), HasSubstr("does not fit 63 bits"));
  GgufBuilder twice = Small();
  twice.AddUint32("a.count", 8);
  EXPECT_THAT(ErrorOf(twice.Build()), HasSubstr("'a.count' at byte"));
  GgufBuilder empty;
  empty.AddUint32("", 8);
  EXPECT_THAT(ErrorOf(empty.Build()), HasSubstr("is empty"));
  GgufBuilder long_key;
  long_key.AddUint32(std::string(5000, 'k'), 8);
  EXPECT_THAT(ErrorOf(long_key.Build()), HasSubstr("the limit is 1024"));
  for (const uint32_t alignment : {0u, 1u, 12u, 33u, 1u << 30}) {
    GgufBuilder aligned;
    aligned.AddUint32("general.alignment", alignment);
    EXPECT_THAT(ErrorOf(aligned.Build()), HasSubstr("general.alignment")) << alignment;
  }
}

TEST(GgufTest, BytesOfTheFileDoNotBreakMessages) {
  GgufBuilder builder;
  builder.AddTensor("evil\n\x1b[2J", {4}, 77, std::string(16, '\0'));
  const std::string error = ErrorOf(builder.Build());
  EXPECT_THAT(error, HasSubstr("'evil\\n\\x1b[2J'"));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(GgufTest, OtherAlignmentsWork) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufBuilder builder(alignment);
    builder.AddUint32("general.alignment", alignment);
    builder.AddTensor("a", {3}, kF32, std::string(12, '\1'));
    builder.AddTensor("b", {1}, kF32, std::string(4, '\2'));
    const std::string bytes = builder.Build();
    const auto file = GgufFile::Parse(Span(bytes), {});
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tensors()[1].data[0], 2);
  }
}

struct TensorCase {
  std::vector<uint64_t> dims;
  uint32_t type;
  int64_t offset;
  std::string message;
};

TEST(GgufTest, MalformedTensorsAreNamed) {
  const uint64_t huge = uint64_t{1} << 62;
  const std::vector<TensorCase> cases = {
      {{}, kF32, -1, "has 0 dimensions"},
      {{1, 1, 1, 1, 1}, kF32, -1, "has 5 dimensions"},
      {{0}, kF32, -1, "dimension 0 is 0"},
      {{4, 0}, kF32, -1, "dimension 1 is 0"},
      {{4, huge, 8}, kF32, -1, "overflows 64 bits"},
      {{huge}, kF32, -1, "overflows 64 bits"},
      {{4, huge}, kF32, -1, "overflows 64 bits"},
      {{32, huge}, 2, -1, "overflows 64 bits"},
      {{uint64_t{1} << 40}, kF32, -1, "the file is truncated"},
      {{4}, 10, -1, "unsupported type Q2_K (10)"},
      {{4}, 15, -1, "unsupported type Q8_K (15)"},
      {{4}, 29, -1, "unsupported type IQ1_M (29)"},
      {{4}, 4, -1, "unsupported type removed (4)"},
      {{4}, 0xffffffff, -1, "unsupported type unknown (4294967295)"},
      {{31}, 8, -1, "Q8_0 needs a multiple of 32"},
      {{33}, 6, -1, "Q5_0 needs a multiple of 32"},
      {{64}, 7, -1, "the file is truncated"},
      {{128}, 12, -1, "Q4_K needs a multiple of 256"},
      {{320, 4}, 13, -1, "Q5_K needs a multiple of 256"},
      {{huge, 8}, 14, -1, "overflows 64 bits"},
      {{256, huge}, 14, -1, "overflows 64 bits"},
      {{32, huge}, 6, -1, "overflows 64 bits"},
      {{256, 1u << 20}, 12, -1, "the file is truncated"},
      {{4}, kF32, 1, "not a multiple of the alignment 32"},
      {{4}, kF32, 32, "the file is truncated: it has"},
      {{4}, kF32, std::numeric_limits<int64_t>::max() - 31, "the file is truncated"},
  };
  for (const TensorCase& c : cases) {
    GgufBuilder builder;
    builder.AddTensor("bad.weight", c.dims, c.type, std::string(32, '\0'), c.offset);
    EXPECT_THAT(ErrorOf(builder.Build()), AllOf(HasSubstr("'bad.weight'"), HasSubstr(c.message)));
  }
  // The largest aligned offset: only the addition of the data's begin overflows.
  std::string bytes = [] {
    GgufBuilder builder;
    builder.AddTensor("bad.weight", {4}, kF32, std::string(16, '\0'), 0x1111111111111120);
    return builder.Build();
  }();
  const size_t at = bytes.find(Bytes(uint64_t{0x1111111111111120}));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 8, Bytes(~uint64_t{31}));
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("offset plus size overflows"));
  EXPECT_THAT(ErrorOf(bytes, true), HasSubstr("offset plus size overflows"));
}

TEST(GgufTest, TensorsOverlapNowhereAndHaveOneName) {
  GgufBuilder overlap;
  overlap.AddTensor("a", {16}, kF32, std::string(64, '\0'));
  overlap.AddTensor("b", {8}, kF32, std::string(32, '\0'), 32);
  EXPECT_THAT(ErrorOf(overlap.Build()), HasSubstr("tensors 'a' and 'b' overlap"));
  GgufBuilder same;
  same.AddTensor("a", {8}, kF32, std::string(32, '\0'), 0);
  same.AddTensor("b", {8}, kF32, std::string(32, '\0'), 0);
  EXPECT_THAT(ErrorOf(same.Build()), HasSubstr("overlap"));
  GgufBuilder twice;
  twice.AddTensor("a", {8}, kF32, std::string(32, '\0'));
  twice.AddTensor("a", {8}, kF32, std::string(32, '\0'));
  EXPECT_THAT(ErrorOf(twice.Build()), HasSubstr("'a' at byte"));
  GgufBuilder reversed;
  reversed.AddTensor("a", {8}, kF32, std::string(32, '\1'), 32);
  reversed.AddTensor("b", {8}, kF32, std::string(32, '\2'), 0);
  EXPECT_EQ(ErrorOf(reversed.Build()), "parsed");
}

TEST(GgufTest, TensorNames) {
  EXPECT_EQ(HfTensorName("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(HfTensorName("output_norm.weight"), "model.norm.weight");
  EXPECT_EQ(HfTensorName("output.weight"), "lm_head.weight");
  EXPECT_EQ(HfTensorName("blk.3.attn_q.weight"), "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(HfTensorName("blk.1.attn_qkv.weight"), "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(HfTensorName("blk.12.attn_k.bias"), "model.layers.12.self_attn.k_proj.bias");
  EXPECT_EQ(HfTensorName("blk.0.ffn_norm.weight"),
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(HfTensorName("blk.0.ffn_norm.weight", true),
            "model.layers.0.pre_feedforward_layernorm.weight");
  EXPECT_EQ(HfTensorName("blk.0.post_attention_norm.weight", true),
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(HfTensorName("blk.0.post_attention_norm.weight"), "");
  EXPECT_EQ(HfTensorName("blk.7.attn_q_norm.weight"), "model.layers.7.self_attn.q_norm.weight");
  for (const char* name :
       {"", ".", "blk", "blk.", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk.1.attn_q",
        "blk.01.attn_q.weight", "blk.-1.attn_q.weight", "blk.123456.attn_q.weight",
        "blk.1.attn_kvq.weight", "blk.1.attn_q.scale", "rope_freqs.weight", "weight"}) {
    EXPECT_EQ(HfTensorName(name), "") << name;
  }
}

}  // namespace
}  // namespace flotilla
