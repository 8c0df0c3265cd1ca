#include "scheduler_proc/grammar/xgrammar_backend.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <sstream>
#include <utility>
#include <variant>

#include "scheduler_proc/grammar/step_budget.h"

namespace flotilla {
namespace {

Status Bad(std::string_view what) { return absl::InvalidArgumentError(StrCat(what)); }

Status TooManySteps() {
  return Bad("the grammar is too complex: finding the next token takes too many steps");
}

// xgrammar's texts have a time and a place in its source first: "[12:00:00] /x/y.cc:820: text".
std::string FirstLine(std::string_view what) {
  if (what.starts_with('[')) {
    const size_t source = what.find(".cc:");
    const size_t end = what.find(": ", source == std::string_view::npos ? 0 : source + 4);
    if (end != std::string_view::npos) what.remove_prefix(end + 2);
  }
  for (std::string_view prefix : {"Check failed: ", "Warning: "}) {
    if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
  }
  what = what.substr(0, what.find('\n'));
  // As it would go on; here it is refused.
  for (std::string_view way : {"; falling back", "; ignoring", " and is ignored"})
    what = what.substr(0, what.find(way));
  return std::string(what.substr(0, 300));
}

// While it lives, what xgrammar warns of is kept instead of printed. The sandbox has one thread.
class CaughtWarnings {
 public:
  CaughtWarnings() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~CaughtWarnings() { std::cerr.rdbuf(before_); }
  CaughtWarnings(const CaughtWarnings&) = delete;
  CaughtWarnings& operator=(const CaughtWarnings&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* const before_;
};

xgrammar::CompiledGrammar Compile(const GrammarSpec& spec, const xgrammar::TokenizerInfo& info) {
  // The cache is of this grammar's own masks: the sandbox has a process a grammar.
  xgrammar::GrammarCompiler compiler(info, /*max_threads=*/1, /*cache_enabled=*/true);
  const auto json = [&](const std::string& schema, bool strict) {
    return compiler.CompileJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                      strict, kMaxJsonBlanks);
  };
  switch (spec.kind) {
    case GrammarKind::kJsonSchema:
      return json(spec.text, /*strict=*/true);
    case GrammarKind::kJsonObject:
      return json(R"({"type":"object"})", /*strict=*/false);
    case GrammarKind::kRegex:
      return compiler.CompileRegex(spec.text);
    case GrammarKind::kStructuralTag:
      return compiler.CompileStructuralTag(spec.text);
    case GrammarKind::kEbnf:
    case GrammarKind::kChoice:
      break;
  }
  return compiler.CompileGrammar(spec.text);
}

using Mask = std::vector<uint32_t>;

class XGrammarMatcher final : public GrammarMatcher {
 public:
  explicit XGrammarMatcher(const xgrammar::CompiledGrammar& grammar) : matcher_(grammar) {}
  // Like `other`, whose next mask is known.
  XGrammarMatcher(const XGrammarMatcher& other, std::shared_ptr<const Mask> next_mask)
      : matcher_(other.matcher_.Fork()),
        next_mask_(std::move(next_mask)),
        steps_(other.steps_),
        history_steps_(other.history_steps_) {}

  Status FillMask(std::span<uint32_t> mask) override {
    if (next_mask_ != nullptr && next_mask_->size() == mask.size()) {
      std::copy(next_mask_->begin(), next_mask_->end(), mask.begin());
      return OkStatus();
    }
    steps_ = std::min(steps_ + kStepsPerToken, kMostSteps);
    RETURN_IF_ERROR(Bounded(&steps_, [&] { Fill(&matcher_, mask); }));
    return HasToken(mask) ? OkStatus() : Bad("no token of this model can come next in the grammar");
  }

  Status Accept(int32_t token) override {
    next_mask_.reset();
    history_steps_ = std::min(history_steps_ + kHistoryStepsPerToken, kMostHistorySteps);
    bool accepted = false;
    RETURN_IF_ERROR(Bounded(&history_steps_, [&] { accepted = matcher_.AcceptToken(token); }));
    matcher_.ForgetStates();
    if (guesser_.has_value()) not_guessed_.push_back(token);
    if (not_guessed_.size() > kMostNotGuessed) ForgetGuesser();
    return accepted ? OkStatus() : Bad(StrCat("token ", token, " is not allowed by the grammar"));
  }

  bool IsTerminated() const override { return matcher_.IsTerminated(); }

  // A matcher that has run out of steps is lost, so it is another one that guesses.
  uint32_t FollowGuess(std::span<const int32_t> guess, std::span<uint32_t> masks) override {
    if (!may_guess_) return 0;
    int64_t steps = kStepsPerToken * static_cast<int64_t>(guess.size());
    uint32_t followed = 0;
    const Status status = Bounded(&steps, [&] {
      CatchUp();
      const size_t words = masks.size() / (guess.size() + 1);
      int accepted = 0;
      for (const int32_t token : guess) {
        if (!Allows(masks.first(words), token) || !guesser_->AcceptToken(token)) break;
        ++accepted;
        if (guesser_->IsTerminated()) break;
        masks = masks.subspan(words);
        Fill(&*guesser_, masks.first(words));
        if (!HasToken(masks.first(words))) break;
        ++followed;
      }
      guesser_->Rollback(accepted);
    });
    if (!status.ok()) {
      ForgetGuesser();
      may_guess_ = false;
    }
    return followed;
  }

 private:
  static constexpr int64_t kHistoryStepsPerToken = 512;
  static constexpr size_t kMostNotGuessed =
      64;  // then a copy is made faster than they are followed

  static void Fill(xgrammar::GrammarMatcher* matcher, std::span<uint32_t> mask) {
    int64_t shape = static_cast<int64_t>(mask.size());
    DLTensor tensor = {mask.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(),
                       &shape,      nullptr,     0};
    matcher->FillNextTokenBitmask(&tensor);
  }
  static bool Allows(std::span<const uint32_t> mask, int32_t token) {
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }
  static bool HasToken(std::span<const uint32_t> mask) {
    return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  }

  void CatchUp() {
    if (!guesser_.has_value()) guesser_ = matcher_.Fork();
    for (const int32_t token : not_guessed_) guesser_->AcceptToken(token);
    not_guessed_.clear();
    guesser_->ForgetStates();
  }
  void ForgetGuesser() {
    guesser_.reset();
    not_guessed_.clear();
  }

  template <typename Work>
  static Status Bounded(int64_t* steps, Work work) {
    try {
      ScopedStepBudget budget(*steps);
      work();
      *steps -= budget.used();
      return OkStatus();
    } catch (const StepBudgetExceeded&) {
      return TooManySteps();
    } catch (const std::exception& e) {
      return Bad(FirstLine(e.what()));
    }
  }

  xgrammar::GrammarMatcher matcher_;
  std::shared_ptr<const Mask> next_mask_;  // null: to be made
  int64_t steps_ = kMostSteps;
  int64_t history_steps_ = kMostHistorySteps;
  std::optional<xgrammar::GrammarMatcher> guesser_;  // as matcher_ was before not_guessed_
  std::vector<int32_t> not_guessed_;
  bool may_guess_ = true;
};

// Made where a grammar may take its time: the loop, in which requests begin, copies a matcher that
// has not begun, and its mask.
class XGrammar final : public Grammar {
 public:
  static StatusOr<std::shared_ptr<const XGrammar>> Create(xgrammar::CompiledGrammar compiled) {
    try {
      std::shared_ptr<XGrammar> grammar;
      {
        ScopedStepBudget budget(kMostSteps);
        grammar.reset(new XGrammar(compiled));
      }
      auto mask = std::make_shared<Mask>(
          MaskWords(static_cast<uint32_t>(compiled.GetTokenizerInfo().GetVocabSize())));
      RETURN_IF_ERROR(grammar->begin_.FillMask(*mask));
      grammar->first_mask_ = std::move(mask);
      return grammar;
    } catch (const StepBudgetExceeded&) {
      return TooManySteps();
    } catch (const std::exception& e) {
      return Bad(FirstLine(e.what()));
    }
  }

  StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    try {
      return std::make_unique<XGrammarMatcher>(begin_, first_mask_);
    } catch (const std::exception& e) {
      return Bad(FirstLine(e.what()));
    }
  }

 private:
  explicit XGrammar(const xgrammar::CompiledGrammar& compiled) : begin_(compiled) {}

  XGrammarMatcher begin_;  // constant once it has made its mask
  std::shared_ptr<const Mask> first_mask_;
};

}  // namespace

XGrammarVocabulary::XGrammarVocabulary(const VocabularyTokens& tokens)
    : info_(std::make_unique<xgrammar::TokenizerInfo>(tokens.tokens, xgrammar::VocabType::RAW,
                                                      static_cast<int>(tokens.vocab_size),
                                                      tokens.eos_ids)) {}
XGrammarVocabulary::~XGrammarVocabulary() = default;

StatusOr<std::string> CompileToJson(const GrammarSpec& spec, const XGrammarVocabulary& vocabulary) {
  try {
    const CaughtWarnings warnings;
    const xgrammar::CompiledGrammar compiled = Compile(spec, vocabulary.info());
    const std::string warned = warnings.text();
    if (!warned.empty()) return Bad(FirstLine(warned));
    // What can't begin is refused here, by the process that may take its time.
    RETURN_IF_ERROR(XGrammar::Create(compiled).status());
    return compiled.SerializeJSON();
  } catch (const std::bad_alloc&) {
    return Bad("compiling it takes too much memory");
  } catch (const std::exception& e) {
    return Bad(FirstLine(e.what()));
  }
}

StatusOr<std::shared_ptr<const Grammar>> GrammarFromJson(std::string_view compiled,
                                                         const XGrammarVocabulary& vocabulary) {
  try {
    auto read =
        xgrammar::CompiledGrammar::DeserializeJSON(std::string(compiled), vocabulary.info());
    if (auto* grammar = std::get_if<xgrammar::CompiledGrammar>(&read))
      return XGrammar::Create(std::move(*grammar));
    return absl::InternalError("a compiled grammar can't be read");
  } catch (const std::exception& e) {
    return absl::InternalError(StrCat("a compiled grammar can't be read: ", FirstLine(e.what())));
  }
}

}  // namespace flotilla
