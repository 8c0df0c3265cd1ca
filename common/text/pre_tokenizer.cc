#include "common/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace flotilla {
namespace {

// Members of the classes that %L, %N and %S stand for inside [ ] below. They are spelt out where
// PCRE2's own differ from those the tokenizers library has: PCRE2 10.42 knows Unicode 14, so the
// letters and numbers added up to Unicode 17 follow the property (tests/common/
// tokenizer_live_test.py compares every code point); and its \s has U+180E, which is no white space
// since Unicode 6.3.
constexpr const char kLetters[] =
    R"(\p{L}\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"
    R"(\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
    R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF})"
    R"(\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB})"
    R"(\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr const char kNumbers[] =
    R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11DE0}-\x{11DE9})"
    R"(\x{11F50}-\x{11F59}\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{16FF4}-\x{16FF6})"
    R"(\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
constexpr const char kSpaces[] =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// GPT-2's words. Possessive (++) where nothing follows: the same matches, no backtracking.
constexpr const char kGpt2Words[] =
    R"('(?:[sdmt]|ll|ve|re)| ?[%L]++| ?[%N]++| ?[^%S%L%N]++|[%S]+(?![^%S])|[%S]++)";
constexpr const char kSingleNumber[] = "[%N]";

struct Rule {
  const char* name;                   // tokenizer.ggml.pre
  std::array<const char*, 2> stages;  // null: no stage
};
constexpr Rule kRules[] = {
    {"gpt-2", {kGpt2Words, nullptr}},
    {"smollm", {kSingleNumber, kGpt2Words}},
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[160];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

class PreTokenizer::Stage {
 public:
  static StatusOr<Stage> Compile(const char* pattern) {
    const std::string full =
        absl::StrReplaceAll(pattern, {{"%L", kLetters}, {"%N", kNumbers}, {"%S", kSpaces}});
    int error = 0;
    PCRE2_SIZE offset = 0;
    std::unique_ptr<pcre2_code, FreeCode> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(full.data()), full.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
    if (code == nullptr) {
      return absl::InternalError(
          absl::StrCat("pre-tokenizer pattern, offset ", offset, ": ", PcreMessage(error)));
    }
    // Without JIT (a kernel that forbids writable code) pcre2_match interprets: slower, same
    // result.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    return Stage(std::move(code));
  }

  Status Split(std::string_view text, pcre2_match_data* match,
               std::vector<std::string_view>* pieces) const {
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
    size_t done = 0;
    while (done < text.size()) {
      const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), done, PCRE2_NO_UTF_CHECK, match, nullptr);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::InternalError(
            absl::StrCat("pre-tokenizer at byte ", done, ": ", PcreMessage(rc)));
      }
      if (bounds[0] > done) pieces->push_back(text.substr(done, bounds[0] - done));
      pieces->push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
      done = bounds[1];
    }
    if (done < text.size()) pieces->push_back(text.substr(done));
    return OkStatus();
  }

 private:
  explicit Stage(std::unique_ptr<pcre2_code, FreeCode> code) : code_(std::move(code)) {}
  std::unique_ptr<pcre2_code, FreeCode> code_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  for (const Rule& rule : kRules) {
    if (rule.name != name) continue;
    std::unique_ptr<PreTokenizer> result(new PreTokenizer());
    for (const char* pattern : rule.stages) {
      if (pattern == nullptr) continue;
      ASSIGN_OR_RETURN(Stage stage, Stage::Compile(pattern));
      result->stages_.push_back(std::move(stage));
    }
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.ggml.pre is '", std::string(name.substr(0, 64)),
                   "', which is not supported; known: ", KnownNames()));
}

std::string PreTokenizer::KnownNames() {
  std::vector<std::string> names;
  for (const Rule& rule : kRules) names.push_back(rule.name);
  return absl::StrJoin(names, ", ");
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  if (match == nullptr) return absl::ResourceExhaustedError("no memory for a match");
  std::vector<std::string_view> from = {text};
  std::vector<std::string_view> to;
  for (const Stage& stage : stages_) {
    to.clear();
    for (std::string_view piece : from) RETURN_IF_ERROR(stage.Split(piece, match.get(), &to));
    std::swap(from, to);
  }
  pieces->insert(pieces->end(), from.begin(), from.end());
  return OkStatus();
}

}  // namespace flotilla
