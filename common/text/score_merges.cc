#include "common/text/score_merges.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace flotilla {
namespace {

// Of a token that merges make: what bounds the time for a hostile file.
constexpr size_t kMaxTokenBytes = 512;

bool IsNormal(const ScoredTokens& tokens, size_t i) {
  return tokens.types[i] == TokenType::kNormal && !tokens.texts[i].empty();
}

// All different scores of normal tokens, highest first: a score's place is its rank.
StatusOr<std::vector<double>> RankedScores(const ScoredTokens& tokens) {
  std::vector<double> scores;
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    if (!IsNormal(tokens, i)) continue;
    if (std::isnan(tokens.scores[i])) {
      return absl::InvalidArgumentError(StrCat("tokenizer.ggml.scores[", i, "] is not a number"));
    }
    if (tokens.texts[i].size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(StrCat("tokenizer.ggml.tokens[", i, "] has ",
                                               tokens.texts[i].size(), " bytes; at most ",
                                               kMaxTokenBytes, " are supported"));
    }
    scores.push_back(tokens.scores[i]);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  return scores;
}

}  // namespace

StatusOr<BpeMerger> MergesByScore(const ScoredTokens& tokens) {
  ASSIGN_OR_RETURN(const std::vector<double> scores, RankedScores(tokens));
  absl::flat_hash_map<std::string_view, TokenId> ids;
  ids.reserve(tokens.texts.size());
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    if (IsNormal(tokens, i)) ids[tokens.texts[i]] = static_cast<TokenId>(i);
  }
  BpeMerger merger;
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    const std::string_view text = tokens.texts[i];
    if (!IsNormal(tokens, i) || ids[text] != static_cast<TokenId>(i)) continue;
    const auto place =
        std::lower_bound(scores.begin(), scores.end(), tokens.scores[i], std::greater<>());
    const uint32_t rank = static_cast<uint32_t>(place - scores.begin());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<uint8_t>(text[cut]) & 0xc0) == 0x80) continue;  // within a character
      const auto left = ids.find(text.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(text.substr(cut));
      if (right != ids.end())
        merger.Add(left->second, right->second, rank, static_cast<TokenId>(i));
    }
  }
  return merger;
}

}  // namespace flotilla
