#include "common/text/normalizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/text/nfc.h"

namespace flotilla {

void Normalizer::Grow(size_t factor) { growth_ = std::min(growth_ * factor, kMaxGrowth + 1); }

void Normalizer::AddNfc() {
  Grow(3);  // Unicode's FAQ on normalisation; U+1D160 … of 4 bytes become 12
  steps_.push_back({Step::Kind::kNfc, "", ""});
}

void Normalizer::AddReplace(std::string from, std::string to) {
  CHECK(!from.empty() && to.size() <= kMaxReplacement);
  Grow(std::max<size_t>(1, (to.size() + from.size() - 1) / from.size()));
  steps_.push_back({Step::Kind::kReplace, std::move(from), std::move(to)});
}

void Normalizer::AddPrepend(std::string prefix) {
  CHECK(prefix.size() <= kMaxReplacement);
  steps_.push_back({Step::Kind::kPrepend, "", std::move(prefix)});
}

void Normalizer::AddPrependUnlessThere(std::string prefix, bool first_only) {
  CHECK(prefix.size() <= kMaxReplacement);
  steps_.push_back(
      {first_only ? Step::Kind::kPrependFirstUnlessThere : Step::Kind::kPrependUnlessThere, "",
       std::move(prefix)});
}

std::string_view Normalizer::Apply(std::string_view text, bool at_start,
                                   std::string* scratch) const {
  for (const Step& step : steps_) {
    if (text.empty()) break;
    std::string next;
    switch (step.kind) {
      case Step::Kind::kNfc:
        if (IsPlainlyNfc(text)) continue;
        next = ToNfc(text);
        break;
      case Step::Kind::kReplace:
        if (text.find(step.from) == std::string_view::npos) continue;
        next = absl::StrReplaceAll({text.data(), text.size()}, {{step.from, step.to}});
        break;
      case Step::Kind::kPrependFirstUnlessThere:
        if (!at_start) continue;
        [[fallthrough]];
      case Step::Kind::kPrependUnlessThere:
        if (text.substr(0, step.to.size()) == step.to) continue;
        [[fallthrough]];
      case Step::Kind::kPrepend:
        next.reserve(step.to.size() + text.size());
        next.append(step.to).append(text);
        break;
    }
    *scratch = std::move(next);
    text = *scratch;
  }
  return text;
}

}  // namespace flotilla
