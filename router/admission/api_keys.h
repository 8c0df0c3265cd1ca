// API keys: who may call, and as which tenant.
//
// A file has a line a key: the tenant's name, the SHA-256 of the key as 64 hex digits, and
// limits, which are the tenant's: requests-per-minute=N, tokens-per-minute=N, concurrency=N. A key
// whose line says `disabled` is known and refused. # begins a comment. The keys themselves are in
// no file and no log. A tenant may have several keys; whoever has one of them is the tenant: its
// name is the salt of its prefix cache, and its requests are nobody else's to abort. A key is
// compared with every hash, in a time that tells nothing of them.
//
// Threads: any. Errors: Load says which line is wrong and keeps the keys there were. A file without
// a key is none: it refuses everybody, and is logged.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "router/base/api_error.h"

namespace flotilla {

inline constexpr size_t kMaxTenantNameBytes = 64;
inline constexpr size_t kMaxApiKeyBytes = 512;

struct Tenant {
  std::string name;
  // 0: no limit.
  uint32_t requests_per_minute = 0;
  uint32_t tokens_per_minute = 0;  // prompt and output
  uint32_t concurrency = 0;        // requests at once

  bool operator==(const Tenant&) const = default;
};

struct ApiKey {
  std::string sha256;
  bool disabled = false;
  std::shared_ptr<const Tenant> tenant;
};

StatusOr<std::vector<ApiKey>> ParseApiKeys(std::string_view text);

class ApiKeys {
 public:
  // Nothing may be called until a file was loaded.
  explicit ApiKeys(std::string path) : path_(std::move(path)) {}

  Status Load();
  // As Load, if the file has changed since. False: it has not. NotFound, once: it is not there when
  // looked at twice.
  StatusOr<bool> Reload();

  // UNAUTHENTICATED for a key that is missing or unknown, PERMISSION_DENIED for a disabled one.
  std::variant<std::shared_ptr<const Tenant>, ApiError> Find(std::string_view key) const;

 private:
  using Keys = std::vector<ApiKey>;
  std::shared_ptr<const Keys> keys() const;

  const std::string path_;
  // The loader's thread: the file's text, and how often in a row it was not there.
  std::string loaded_;
  int times_missing_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_ = std::make_shared<Keys>();
};

// "Bearer KEY" → KEY; empty if it is none.
std::string_view BearerKey(std::string_view authorization);

}  // namespace flotilla
