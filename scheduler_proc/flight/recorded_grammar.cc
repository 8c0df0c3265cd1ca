#include "scheduler_proc/flight/recorded_grammar.h"

#include <algorithm>
#include <utility>

namespace flotilla {
namespace {

// A count is told from the other answers.
constexpr int kCounts = 64;
static_assert(kCounts + kMaxDraftTokens <= 127);

class Recorder {
 public:
  explicit Recorder(GrammarLog* log) : log_(*log) {}
  bool Note(bool answer) const {
    log_.answers.push_back(answer ? 1 : 0);
    return answer;
  }
  uint32_t Note(uint32_t answer) const {
    log_.answers.push_back(static_cast<char>(kCounts + static_cast<int>(answer)));
    return answer;
  }
  Status Note(Status answer) const {
    log_.answers.push_back(static_cast<char>(answer.code()));
    return answer;
  }

 private:
  GrammarLog& log_;
};

class RecordedMatcher final : public GrammarMatcher {
 public:
  RecordedMatcher(std::unique_ptr<GrammarMatcher> matcher, GrammarLog* log)
      : matcher_(std::move(matcher)), recorder_(log) {}
  Status FillMask(std::span<uint32_t> mask) override {
    return recorder_.Note(matcher_->FillMask(mask));
  }
  Status Accept(int32_t token) override { return recorder_.Note(matcher_->Accept(token)); }
  bool IsTerminated() const override { return recorder_.Note(matcher_->IsTerminated()); }
  uint32_t FollowGuess(std::span<const int32_t> guess, std::span<uint32_t> masks) override {
    return recorder_.Note(matcher_->FollowGuess(guess, masks));
  }

 private:
  const std::unique_ptr<GrammarMatcher> matcher_;
  const Recorder recorder_;
};

class Recorded final : public Grammar {
 public:
  Recorded(std::shared_ptr<const Grammar> grammar, GrammarLog* log)
      : grammar_(std::move(grammar)), log_(log) {}
  StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    StatusOr<std::unique_ptr<GrammarMatcher>> matcher = grammar_->NewMatcher();
    RETURN_IF_ERROR(Recorder(log_).Note(matcher.status()));
    return std::unique_ptr<GrammarMatcher>(new RecordedMatcher(*std::move(matcher), log_));
  }

 private:
  const std::shared_ptr<const Grammar> grammar_;
  GrammarLog* const log_;
};

class Answers {
 public:
  explicit Answers(GrammarLog* log) : log_(*log) {}
  bool TakeBool() const { return Take() != 0; }
  uint32_t TakeCount() const { return static_cast<uint32_t>(std::max(Take() - kCounts, 0)); }
  Status TakeStatus() const {
    return {static_cast<absl::StatusCode>(Take()), "as the grammar said when it was recorded"};
  }

 private:
  int Take() const {
    if (log_.taken < log_.answers.size())
      return static_cast<unsigned char>(log_.answers[log_.taken++]);
    log_.ran_out = true;
    return 0;
  }
  GrammarLog& log_;
};

class ReplayedMatcher final : public GrammarMatcher {
 public:
  explicit ReplayedMatcher(GrammarLog* log) : answers_(log) {}
  Status FillMask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    return answers_.TakeStatus();
  }
  Status Accept(int32_t /*token*/) override { return answers_.TakeStatus(); }
  bool IsTerminated() const override { return answers_.TakeBool(); }
  uint32_t FollowGuess(std::span<const int32_t> guess, std::span<uint32_t> masks) override {
    std::fill(masks.begin(), masks.end(), 0);
    return std::min(answers_.TakeCount(), static_cast<uint32_t>(guess.size()));
  }

 private:
  const Answers answers_;
};

class Replayed final : public Grammar {
 public:
  explicit Replayed(GrammarLog* log) : log_(log) {}
  StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    RETURN_IF_ERROR(Answers(log_).TakeStatus());
    return std::unique_ptr<GrammarMatcher>(new ReplayedMatcher(log_));
  }

 private:
  GrammarLog* const log_;
};

}  // namespace

std::shared_ptr<const Grammar> RecordedGrammar(std::shared_ptr<const Grammar> grammar,
                                               GrammarLog* log) {
  return std::make_shared<Recorded>(std::move(grammar), log);
}

std::shared_ptr<const Grammar> ReplayedGrammar(GrammarLog* log) {
  return std::make_shared<Replayed>(log);
}

}  // namespace flotilla
