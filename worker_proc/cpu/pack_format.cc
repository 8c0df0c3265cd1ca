#include "worker_proc/cpu/pack_format.h"

#include "common/base/wire.h"
#include "common/base/xxh64.h"

namespace flotilla::cpu {
namespace {

constexpr uint64_t kMagic = 0x314b434150544c46;          // "FLTPACK1"
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 28;  // far above any model's
constexpr uint64_t kMaxPartBytes = uint64_t{1} << 48;

static_assert(sizeof(PackPart) == 40);  // written as it lies in memory

Status Damaged(std::string_view what) {
  return absl::DataLossError(
      StrCat("packed weights: ", absl::string_view(what.data(), what.size())));
}

}  // namespace

std::vector<uint64_t> PackHeader::Offsets() const {
  std::vector<uint64_t> offsets = {0};
  for (const PackPart& part : parts) {
    offsets.push_back((offsets.back() + part.bytes + kPartAlignment - 1) / kPartAlignment *
                      kPartAlignment);
  }
  return offsets;
}

std::string BuildPackHeader(const PackHeader& header) {
  std::string body;
  WireWriter out(&body);
  out.Put(kPackFormatVersion);
  out.PutBytes(header.key);
  out.PutSpan(std::span<const PackPart>(header.parts));
  out.PutSpan(std::span<const uint64_t>(header.checksums));
  std::string bytes;
  WireWriter preamble(&bytes);
  preamble.Put(kMagic);
  preamble.Put(uint64_t{body.size()});
  preamble.Put(Xxh64(body));
  return bytes + body;
}

StatusOr<uint64_t> PackHeaderBytes(std::string_view preamble) {
  WireReader in(preamble);
  const uint64_t magic = in.Get<uint64_t>();
  const uint64_t bytes = in.Get<uint64_t>();
  if (!in.ok() || magic != kMagic) return Damaged("this is another kind of file");
  if (bytes > kMaxHeaderBytes) return Damaged("the header's size");
  return bytes;
}

StatusOr<PackHeader> ParsePackHeader(std::string_view bytes, std::string_view key) {
  WireReader preamble(bytes);
  preamble.Get<uint64_t>();
  preamble.Get<uint64_t>();
  const uint64_t checksum = preamble.Get<uint64_t>();
  if (!preamble.ok()) return Damaged("the header is cut off");
  const std::string_view body = bytes.substr(kPackPreambleBytes);
  if (Xxh64(body) != checksum) return Damaged("the header's checksum");
  WireReader in(body);
  const uint32_t version = in.Get<uint32_t>();
  if (version != kPackFormatVersion) {
    return absl::FailedPreconditionError(StrCat("packed weights of version ", version));
  }
  if (in.GetBytes() != key) {
    return absl::FailedPreconditionError("packed weights of another model, or packed otherwise");
  }
  PackHeader header;
  header.key.assign(key);
  if (!in.GetSpanInto(in.remaining(), &header.parts)) return Damaged("the parts");
  if (!in.GetSpanInto(in.remaining(), &header.checksums)) return Damaged("the checksums");
  if (!in.AtEnd()) return Damaged("the header's end");
  for (const PackPart& part : header.parts) {
    if (part.bytes > kMaxPartBytes / header.parts.size()) return Damaged("a part's size");
  }
  const uint64_t blocks = (header.data_bytes() + kPackBlock - 1) / kPackBlock;
  if (header.checksums.size() != blocks) return Damaged("the number of checksums");
  return header;
}

}  // namespace flotilla::cpu
