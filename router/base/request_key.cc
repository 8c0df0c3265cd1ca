#include "router/base/request_key.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"

namespace flotilla {
namespace {

// The same bytes in every process: fields that are maps have no order of their own.
std::string Bytes(const v1::GenerateRequest& request) {
  std::string out;
  {
    google::protobuf::io::StringOutputStream stream(&out);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&coded);
  }
  return out;
}

}  // namespace

std::optional<ApiError> CheckIdempotencyKey(std::string_view key) {
  const bool visible =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  if (!key.empty() && key.size() <= kMaxIdempotencyKeyBytes && visible) return std::nullopt;
  return InvalidField("Idempotency-Key",
                      absl::StrCat("The header 'Idempotency-Key' must have 1 to ",
                                   kMaxIdempotencyKeyBytes, " visible ASCII characters."));
}

std::string RequestDigest(const v1::GenerateRequest& params,
                          std::span<const std::span<const int32_t>> prompts) {
  v1::GenerateRequest asked = params;
  asked.clear_prompt();
  asked.clear_request_id();
  asked.clear_idempotency_key();
  asked.clear_session();
  asked.clear_priority();
  asked.clear_deadline_ms();
  asked.mutable_output()->clear_return_timing();
  std::string text = Bytes(asked);
  for (const std::span<const int32_t> ids : prompts) {
    absl::StrAppend(&text, "\n", ids.size(), ":");
    text.append(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
  }
  return Sha256Hex(text);
}

v1::Keyed KeyedOf(const RequestKey& key, size_t choice) {
  v1::Keyed keyed;
  // Lengths, so that no two keys of two tenants are written alike.
  keyed.set_key(
      Sha256Hex(absl::StrCat(key.tenant.size(), ":", key.tenant, ",", key.idempotency_key.size(),
                             ":", key.idempotency_key, ",", key.prompt, ",", choice)));
  keyed.set_digest(key.digest);
  return keyed;
}

}  // namespace flotilla
