// What a client's Idempotency-Key stands for, as replicas know it (Keyed of engine.proto). Every
// router makes the same of the same request, so a repeat through another one finds the first.
//
// A key belongs to its tenant. What is asked is all that decides the answer: model, prompts and
// parameters; not the request's id, priority, deadline or whether its timing is told.
// Threads: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flotilla/v1/engine.pb.h"
#include "router/base/api_error.h"

namespace flotilla {

inline constexpr size_t kMaxIdempotencyKeyBytes = 255;

// Of one prompt of a request.
struct RequestKey {
  std::string tenant;
  std::string idempotency_key;
  size_t prompt = 0;   // its number, if the request has several
  std::string digest;  // 64 hex digits, of the whole request
};

// Of a header: 1 to 255 visible ASCII characters.
std::optional<ApiError> CheckIdempotencyKey(std::string_view key);

// `params` without the prompts, which are `prompts`: the token ids of each.
std::string RequestDigest(const v1::GenerateRequest& params,
                          std::span<const std::span<const int32_t>> prompts);

v1::Keyed KeyedOf(const RequestKey& key, size_t choice);

}  // namespace flotilla
