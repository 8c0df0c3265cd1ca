// The merges of a vocabulary that has scores instead (SentencePiece's BPE): any two tokens whose
// texts make a third may merge, the one of the highest score first, the leftmost of equals.
//
// Only normal tokens merge and are merged to. Where SentencePiece would pass through a piece that
// is "unused", or merge a character that is no token itself, this does not; no vocabulary in reach
// has either. Time and memory: a look-up and at most 16 bytes for each place where a token can be
// cut. Errors: InvalidArgument naming the field. Source: sentencepiece's bpe_model.cc.
#pragma once

#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/text/bpe_merger.h"
#include "common/text/vocabulary.h"

namespace flotilla {

struct ScoredTokens {
  std::span<const std::string_view> texts;  // as the file writes them
  std::span<const TokenType> types;
  std::span<const double> scores;
};
StatusOr<BpeMerger> MergesByScore(const ScoredTokens& tokens);

}  // namespace flotilla
