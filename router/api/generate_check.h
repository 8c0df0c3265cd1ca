// The checks every GenerateRequest passes, whether it came by HTTP or gRPC, and the defaults that
// the router sets.
//
// Units and ranges are proto/flotilla/v1/inference.proto's. Errors name the field without its
// message ("temperature"), so they read alike in both APIs. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "flotilla/v1/inference.pb.h"
#include "router/base/api_error.h"
#include "router/base/model_handle.h"

namespace flotilla {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr size_t kMaxStopTokenIds = 64;
inline constexpr size_t kMaxLogitBiasTokens = 1024;
inline constexpr size_t kMaxSessionBytes = 255;

// "code" of what does not fit the model's context: OpenAI's, which its clients look for.
inline constexpr const char* kContextExceeded = "context_length_exceeded";
// `what`: how it does not fit, for the message's end.
ApiError ContextExceeded(std::string field, const ModelHandle& model, std::string_view what);

// Ranges of every field but the prompt.
std::optional<ApiError> CheckParams(const v1::GenerateRequest& request, const ModelHandle& model);

// The text that a grammar is made of: each choice takes it to its replica, which would refuse a
// longer one. `field`: the client's name for it; empty: "structured".
std::optional<ApiError> CheckStructured(const v1::GenerateRequest& request,
                                        const ModelHandle& model, const std::string& field);

// Before tokenising, which takes a second for some megabytes.
std::optional<ApiError> CheckPromptBytes(std::string_view text, std::string_view field,
                                         const ModelHandle& model);

// Each id is one of the model's.
std::optional<ApiError> CheckTokenIds(std::span<const int32_t> ids, std::string_view field,
                                      const ModelHandle& model);

// Sets max_tokens if absent (what is left of the context) and refuses what does not fit.
// `field`: what the prompt came from.
std::optional<ApiError> FitToContext(size_t prompt_tokens, const ModelHandle& model,
                                     v1::GenerateRequest* request,
                                     const std::string& field = "prompt");

// Sets what is absent to the model's defaults.
void SetModelSampling(const ModelHandle& model, v1::SamplingParams* sampling);

// Sets the seed if absent: 0 with temperature 0, a hash of the idempotency key, else `random`.
void SetSeed(uint64_t random, v1::GenerateRequest* request);

}  // namespace flotilla
