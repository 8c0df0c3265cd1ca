// Changes a text before it is cut into pieces: what a tokenizer.json calls its normalizer, and the
// part of a Metaspace pre-tokenizer that rewrites the text.
//
// Time: linear (NFC: see nfc.h). Threads: const after the last Add.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

class Normalizer {
 public:
  static constexpr size_t kMaxReplacement = 64;  // bytes that a step may put in at one place
  // For readers of files to hold to: how many steps, and by what they may multiply a text's bytes.
  static constexpr size_t kMaxSteps = 16;
  static constexpr size_t kMaxGrowth = 16;

  void AddNfc();
  // All of `from`, from left to right; it must not be empty.
  void AddReplace(std::string from, std::string to);
  // Before a text that is not empty.
  void AddPrepend(std::string prefix);
  // As AddPrepend, unless the text begins with it; first_only: only where the whole text begins.
  void AddPrependUnlessThere(std::string prefix, bool first_only);

  size_t num_steps() const { return steps_.size(); }
  // What the steps but for prefixes may multiply a text's bytes by; anything beyond kMaxGrowth is
  // kMaxGrowth + 1.
  size_t growth() const { return growth_; }

  // `text` or a view of *scratch. at_start: the whole text begins here.
  std::string_view Apply(std::string_view text, bool at_start, std::string* scratch) const;

 private:
  struct Step {
    enum class Kind { kNfc, kReplace, kPrepend, kPrependUnlessThere, kPrependFirstUnlessThere };
    Kind kind;
    std::string from;  // kReplace
    std::string to;
  };
  void Grow(size_t factor);

  std::vector<Step> steps_;
  size_t growth_ = 1;
};

}  // namespace flotilla
