#include "common/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/text/split_pattern.h"

namespace flotilla {
namespace {

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
  static StatusOr<Stage> Compile(const SplitStage& stage) {
    const std::string pattern = ToPcre2(stage.pattern);
    const uint32_t options = stage.of_bytes ? 0 : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE offset = 0;
    std::unique_ptr<pcre2_code, FreeCode> code(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                      &offset, nullptr));
    if (code == nullptr) {
      return absl::InternalError(
          StrCat("pre-tokenizer pattern, offset ", offset, ": ", PcreMessage(error)));
    }
    // Without JIT (a kernel that forbids writable code) pcre2_match interprets: slower, same
    // result.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    return Stage(std::move(code), stage.drop_gaps);
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
        return absl::ResourceExhaustedError(
            StrCat("the text is too hard to cut into words, at byte ", done, " of a part of ",
                   text.size(), " bytes: ", PcreMessage(rc)));
      }
      CHECK(bounds[1] > bounds[0]);  // no pattern of the table matches nothing
      if (bounds[0] > done) Gap(text.substr(done, bounds[0] - done), pieces);
      pieces->push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
      done = bounds[1];
    }
    if (done < text.size()) Gap(text.substr(done), pieces);
    return OkStatus();
  }

 private:
  Stage(std::unique_ptr<pcre2_code, FreeCode> code, bool drop_gaps)
      : code_(std::move(code)), drop_gaps_(drop_gaps) {}
  void Gap(std::string_view gap, std::vector<std::string_view>* pieces) const {
    if (!drop_gaps_) pieces->push_back(gap);
  }

  std::unique_ptr<pcre2_code, FreeCode> code_;
  bool drop_gaps_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&& other) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&& other) noexcept = default;

StatusOr<PreTokenizer> PreTokenizer::Create(std::span<const SplitStage> stages) {
  PreTokenizer result;
  for (const SplitStage& stage : stages) {
    ASSIGN_OR_RETURN(Stage compiled, Stage::Compile(stage));
    result.stages_.push_back(std::move(compiled));
  }
  return result;
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  if (stages_.empty()) {
    pieces->push_back(text);
    return OkStatus();
  }
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
