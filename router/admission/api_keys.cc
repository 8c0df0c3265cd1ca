#include "router/admission/api_keys.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/sha256.h"

namespace flotilla {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;

bool IsHash(std::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

bool IsTenantName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTenantNameBytes &&
         std::ranges::all_of(name, [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

// "requests-per-minute=60"; nothing if it is no limit.
Status ReadLimit(std::string_view word, Tenant* out) {
  const size_t at = word.find('=');
  const std::string_view name = word.substr(0, at);
  uint32_t* const limit = name == "requests-per-minute" ? &out->requests_per_minute
                          : name == "tokens-per-minute" ? &out->tokens_per_minute
                          : name == "concurrency"       ? &out->concurrency
                                                        : nullptr;
  if (limit == nullptr || at == std::string_view::npos)
    return absl::InvalidArgumentError(StrCat("'", word.substr(0, 64), "' is no limit"));
  const std::string_view value = word.substr(at + 1);
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *limit);
  if (error != std::errc() || end != value.data() + value.size() || *limit == 0)
    return absl::InvalidArgumentError(StrCat("'", name, "' must be a number of at least 1"));
  return OkStatus();
}

struct Line {
  Tenant tenant;
  ApiKey key;
};

// Nothing for an empty line.
StatusOr<std::optional<Line>> ReadLine(std::string_view text) {
  text = text.substr(0, text.find('#'));
  const std::vector<std::string> words = absl::StrSplit(
      absl::string_view(text.data(), text.size()), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) return std::nullopt;
  Line line;
  line.tenant.name = words[0];
  if (!IsTenantName(words[0]))
    return absl::InvalidArgumentError(
        StrCat("the tenant's name must be 1 to ", kMaxTenantNameBytes, " of A-Z a-z 0-9 - _ ."));
  if (words.size() < 2 || !IsHash(words[1]))
    return absl::InvalidArgumentError(
        "after the tenant comes its key's SHA-256, 64 lower-case hex digits");
  line.key.sha256 = words[1];
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "disabled")
      line.key.disabled = true;
    else
      RETURN_IF_ERROR(ReadLimit(words[i], &line.tenant));
  }
  return line;
}

// The same time for any two texts of that length.
bool SameHash(std::string_view a, std::string_view b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < 64; ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

ApiError Refusal(absl::StatusCode code, std::string message) {
  ApiError error;
  error.code = code;
  error.message = std::move(message);
  error.type_code = "invalid_api_key";
  return error;
}

}  // namespace

StatusOr<std::vector<ApiKey>> ParseApiKeys(std::string_view text) {
  std::vector<ApiKey> keys;
  std::map<std::string, std::shared_ptr<const Tenant>> tenants;
  size_t number = 0;
  for (const absl::string_view raw :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const auto wrong = [&](std::string_view what) {
      return absl::InvalidArgumentError(StrCat("line ", number, ": ", what));
    };
    StatusOr<std::optional<Line>> line = ReadLine({raw.data(), raw.size()});
    if (!line.ok()) return wrong({line.status().message().data(), line.status().message().size()});
    if (!line->has_value()) continue;
    Line& read = **line;
    std::shared_ptr<const Tenant>& tenant = tenants[read.tenant.name];
    if (tenant == nullptr) tenant = std::make_shared<Tenant>(read.tenant);
    if (*tenant != read.tenant)
      return wrong(StrCat("'", read.tenant.name, "' has other limits in another line"));
    if (std::ranges::find(keys, read.key.sha256, &ApiKey::sha256) != keys.end())
      return wrong("this hash is in another line too");
    read.key.tenant = tenant;
    keys.push_back(std::move(read.key));
  }
  return keys;
}

Status ApiKeys::Load() {
  std::ifstream file(path_, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) return absl::NotFoundError(StrCat("can't read ", path_));
  if (text.size() > kMaxFileBytes)
    return absl::ResourceExhaustedError(StrCat(path_, " has more than ", kMaxFileBytes, " bytes"));
  StatusOr<Keys> keys = ParseApiKeys(text);
  loaded_ = std::move(text);
  if (!keys.ok()) return Annotate(keys.status(), path_);
  if (keys->empty())
    Log().warn("there is no key in the file, every request is refused {}", Kv("file", path_));
  std::lock_guard<std::mutex> lock(mutex_);
  keys_ = std::make_shared<const Keys>(*std::move(keys));
  return OkStatus();
}

StatusOr<bool> ApiKeys::Reload() {
  std::ifstream file(path_, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    // One that is being replaced may be away for a moment.
    if (++times_missing_ != 2) return false;
    return absl::NotFoundError(StrCat("can't read ", path_, "; to refuse every key, empty it"));
  }
  times_missing_ = 0;
  if (text == loaded_) return false;
  RETURN_IF_ERROR(Load());
  return true;
}

std::shared_ptr<const ApiKeys::Keys> ApiKeys::keys() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keys_;
}

std::variant<std::shared_ptr<const Tenant>, ApiError> ApiKeys::Find(std::string_view key) const {
  if (key.empty())
    return Refusal(absl::StatusCode::kUnauthenticated,
                   "An API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.");
  const std::string hash = Sha256Hex(key.substr(0, kMaxApiKeyBytes + 1));
  const std::shared_ptr<const Keys> all = keys();
  const ApiKey* found = nullptr;
  for (const ApiKey& each : *all) {
    if (SameHash(each.sha256, hash)) found = &each;
  }
  if (found == nullptr)
    return Refusal(absl::StatusCode::kUnauthenticated, "This API key is not known here.");
  if (found->disabled)
    return Refusal(absl::StatusCode::kPermissionDenied, "This API key is disabled.");
  return found->tenant;
}

std::string_view BearerKey(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  const std::string_view scheme = authorization.substr(0, kScheme.size());
  if (!absl::EqualsIgnoreCase({scheme.data(), scheme.size()}, {kScheme.data(), kScheme.size()}))
    return {};
  std::string_view key = authorization.substr(kScheme.size());
  while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
  while (!key.empty() && key.back() == ' ') key.remove_suffix(1);
  return key;
}

}  // namespace flotilla
