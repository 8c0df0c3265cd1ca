// A grammar for random workloads: which tokens may come next depends on all that came before, so
// that a mask of another place, or of another request, shows in the output. About a share of the
// vocabulary is allowed at each place, and the end of sequence at some; after `most` tokens only
// that. From `fails_at` tokens on there is no mask.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "scheduler_proc/core/grammar.h"
#include "tests/fakes/follow_guess.h"

namespace flotilla::testing {

class SimGrammar final : public Grammar {
 public:
  struct Shape {
    uint64_t seed = 1;
    uint32_t vocab_size = 97;
    int32_t eos = 0;
    uint32_t most = 40;
    uint32_t sixteenths = 4;  // the share
    uint32_t fails_at = UINT32_MAX;
  };
  explicit SimGrammar(const Shape& shape) : shape_(shape) {}

  StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    return std::unique_ptr<GrammarMatcher>(new Matcher(shape_));
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(const Shape& shape) : shape_(shape), state_(Scramble(shape.seed)) {}

    Status FillMask(std::span<uint32_t> mask) override {
      if (at_ >= shape_.fails_at) return absl::InvalidArgumentError("it fails here");
      std::fill(mask.begin(), mask.end(), 0);
      for (uint32_t token = 0; token < shape_.vocab_size; ++token) {
        if (Allows(static_cast<int32_t>(token))) mask[token / 32] |= 1u << (token % 32);
      }
      return OkStatus();
    }
    Status Accept(int32_t token) override {
      if (terminated_ || !Allows(token)) return absl::InvalidArgumentError("not allowed");
      terminated_ = token == shape_.eos;
      state_ = Scramble(state_ * 31 + static_cast<uint32_t>(token));
      ++at_;
      return OkStatus();
    }
    bool IsTerminated() const override { return terminated_; }
    uint32_t FollowGuess(std::span<const int32_t> guess, std::span<uint32_t> masks) override {
      return testing::FollowGuess(*this, guess, masks);
    }

   private:
    static uint64_t Scramble(uint64_t x) {
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
      x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
      return x ^ (x >> 31);
    }
    bool Allows(int32_t token) const {
      const bool may_end = at_ >= shape_.most || state_ % 16 == 0;
      if (token == shape_.eos) return may_end;
      if (at_ >= shape_.most) return false;
      // One at least, whatever the state.
      const auto sure = 1 + static_cast<int32_t>(state_ % (shape_.vocab_size - 1));
      return token == sure ||
             Scramble(state_ + static_cast<uint32_t>(token)) % 16 < shape_.sixteenths;
    }

    const Shape shape_;
    uint64_t state_;
    uint32_t at_ = 0;
    bool terminated_ = false;
  };

  const Shape shape_;
};

}  // namespace flotilla::testing
