#include "common/text/pre_tokenizer_table.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_join.h"

namespace flotilla {
namespace {

// --- Regular expressions, as the models' tokenizer.json files write them ---

// Llama 3, GLM 4, DBRX, …: words with one leading character, numbers in groups of three.
#define CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
constexpr std::string_view kLlama3 = CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen 2, 2.5, 3: numbers digit by digit.
constexpr std::string_view kQwen2 = CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen 3.5: marks belong to words.
constexpr std::string_view kQwen35 =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
                 R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// o200k (gpt-oss, Llama 4) and Tekken (Mistral Nemo and later): words end before a capital.
#define CAPITALISED \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
#define CAPITALS R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
constexpr std::string_view kO200k =
    CAPITALISED CONTRACTIONS "?|" CAPITALS CONTRACTIONS
                             R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    CAPITALISED "|" CAPITALS R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek's: line ends, letters, punctuation, Chinese and Korean, each in a stage of its own. The
// line ends in these are the characters themselves; the escapes in kDeepseekLetters are characters
// that an editor might normalise.
constexpr std::string_view kLineEnd = "[\r\n]";
// It would break these lines anew each time:
// clang-format off
constexpr std::string_view kDeepseekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-"
    "ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1F7Dᾀ-ᾴᾶ-ᾼ\u1FBEῂ-ῄῆ-ῌῐ-\u1FD3ῖ-\u1FDBῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212A-"
    "ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-"
    "𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
// clang-format on
constexpr std::string_view kDeepseekPunctuation = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+";
constexpr std::string_view kDeepseekEast = "[一-龥ࠀ-一가-\uD7FF]+";
constexpr std::string_view kSpacesAtEnd = "\\s+$";
constexpr std::string_view kDeepseekCoderLetters = R"(\s?\p{L}+)";
constexpr std::string_view kDeepseekCoderPunctuation = R"(\s?\p{P}+)";
constexpr std::string_view kOneToThreeNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kDeepseekV3East = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kDeepseekV3Words =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

struct Regex {
  std::string_view written;
  std::string_view pattern;
};
constexpr Regex Same(std::string_view regex) { return {regex, regex}; }
constexpr Regex kRegexes[] = {
    Same(kGpt2Words),
    Same(kLlama3),
    Same(kQwen2),
    Same(kQwen35),
    Same(kO200k),
    Same(kTekken),
    Same(kLineEnd),
    Same(kDeepseekLetters),
    Same(kDeepseekPunctuation),
    Same(kDeepseekEast),
    // As it stands its time is quadratic in a run of spaces.
    {kSpacesAtEnd, R"((?<!\s)\s++\z)"},
    Same(kDeepseekCoderLetters),
    Same(kDeepseekCoderPunctuation),
    Same(kOneToThreeNumbers),
    Same(kDeepseekV3East),
    Same(kDeepseekV3Words),
    Same(kThreeDigits),
};

constexpr SplitStage Stage(std::string_view regex) {
  for (const Regex& row : kRegexes) {
    if (row.written == regex) return {.pattern = row.pattern};
  }
  return {.pattern = regex};
}

// --- Names ---

using Stages = std::array<SplitStage, PreTokenizerRow::kMaxStages>;
constexpr Stages kDigitThenGpt2 = {Stage(kDigit), Stage(kGpt2Words)};

constexpr PreTokenizerRow kRows[] = {
    {.name = "command-r", .stages = kDigitThenGpt2, .nfc = true},
    {.name = "dbrx", .stages = {Stage(kLlama3)}},
    {.name = "deepseek-coder",
     .stages = {Stage(kLineEnd), Stage(kDeepseekCoderLetters), Stage(kDeepseekCoderPunctuation),
                Stage(kDeepseekEast), Stage(kDigit)}},
    {.name = "deepseek-llm",
     .stages = {Stage(kLineEnd), Stage(kDeepseekLetters), Stage(kDeepseekPunctuation),
                Stage(kSpacesAtEnd), Stage(kDeepseekEast), Stage(kDigit)}},
    {.name = "deepseek-r1-qwen", .stages = {Stage(kQwen2)}, .nfc = true},
    {.name = "deepseek-v3",
     .stages = {Stage(kOneToThreeNumbers), Stage(kDeepseekV3East), Stage(kDeepseekV3Words)}},
    {.name = "falcon",
     .stages = {Stage(kPunctuations), Stage(kGpt2Words),
                SplitStage{.pattern = kByteLevelDigits, .of_bytes = true},
                SplitStage{.pattern = kThreeDigits, .of_bytes = true}}},
    {.name = "glm4", .stages = {Stage(kLlama3)}, .ignore_merges = true},
    {.name = "gpt-2", .stages = {Stage(kGpt2Words)}},
    {.name = "gpt-4o", .stages = {Stage(kO200k)}, .ignore_merges = true},
    {.name = "llama-bpe", .stages = {Stage(kLlama3)}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .stages = {Stage(kLlama3)}, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .stages = {Stage(kLlama3)}, .ignore_merges = true, .add_bos = true},
    {.name = "llama4", .stages = {Stage(kO200k)}, .ignore_merges = true},
    {.name = "mpt", .stages = {Stage(kGpt2Words)}, .nfc = true},
    {.name = "olmo", .stages = {Stage(kGpt2Words)}, .nfc = true},
    {.name = "qwen2", .stages = {Stage(kQwen2)}, .nfc = true},
    {.name = "qwen35", .stages = {Stage(kQwen35)}, .nfc = true},
    {.name = "refact", .stages = kDigitThenGpt2},
    // What llama.cpp's converter calls Llama 3's without a BOS, such as SmolLM3's.
    {.name = "smaug-bpe", .stages = {Stage(kLlama3)}, .ignore_merges = true},
    {.name = "smollm", .stages = kDigitThenGpt2},
    {.name = "starcoder", .stages = kDigitThenGpt2},
    {.name = "tekken", .stages = {Stage(kTekken)}, .ignore_merges = true, .add_bos = true},
};

}  // namespace

std::span<const SplitStage> PreTokenizerRow::used_stages() const {
  const auto* end = std::find_if(stages.begin(), stages.end(),
                                 [](const SplitStage& stage) { return stage.pattern.empty(); });
  return {stages.begin(), end};
}

const PreTokenizerRow* FindPreTokenizer(std::string_view name) {
  for (const PreTokenizerRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string KnownPreTokenizers() {
  std::vector<std::string> names;
  for (const PreTokenizerRow& row : kRows) names.emplace_back(row.name);
  return absl::StrJoin(names, ", ");
}

std::string_view FindSplitPattern(std::string_view regex) {
  for (const Regex& row : kRegexes) {
    if (row.written == regex) return row.pattern;
  }
  return {};
}

}  // namespace flotilla
