// A grammar for tests that is its own proof: the output must be `script`, but for every token the
// next higher one is as good; then only the end of sequence is allowed. Counts what is asked of it.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler_proc/core/grammar.h"
#include "tests/fakes/follow_guess.h"

namespace flotilla::testing {

class ScriptGrammar final : public Grammar {
 public:
  ScriptGrammar(std::vector<int32_t> script, int32_t eos) : script_(std::move(script)), eos_(eos) {}

  StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    if (script_.empty()) return absl::InvalidArgumentError("the script is empty");
    return std::unique_ptr<GrammarMatcher>(new Matcher(this));
  }
  // Masks at this place of the output fail.
  void FailAt(size_t place) { fail_at_ = place; }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(const ScriptGrammar* grammar) : grammar_(*grammar) {}
    Status FillMask(std::span<uint32_t> mask) override {
      if (at_ == grammar_.fail_at_) return absl::InvalidArgumentError("no such luck");
      std::fill(mask.begin(), mask.end(), 0);
      for (const int32_t token : Allowed())
        mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      return OkStatus();
    }
    Status Accept(int32_t token) override {
      const std::vector<int32_t> allowed = Allowed();
      if (terminated_ || std::find(allowed.begin(), allowed.end(), token) == allowed.end())
        return absl::InvalidArgumentError("not in the script");
      terminated_ = at_ == grammar_.script_.size();
      ++at_;
      return OkStatus();
    }
    bool IsTerminated() const override { return terminated_; }
    uint32_t FollowGuess(std::span<const int32_t> guess, std::span<uint32_t> masks) override {
      return testing::FollowGuess(*this, guess, masks);
    }

   private:
    std::vector<int32_t> Allowed() const {
      if (at_ >= grammar_.script_.size()) return {grammar_.eos_};
      return {grammar_.script_[at_], grammar_.script_[at_] + 1};
    }

    const ScriptGrammar& grammar_;
    size_t at_ = 0;
    bool terminated_ = false;
  };

  const std::vector<int32_t> script_;
  const int32_t eos_;
  size_t fail_at_ = SIZE_MAX;
};

}  // namespace flotilla::testing
