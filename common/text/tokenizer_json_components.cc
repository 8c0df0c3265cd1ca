#include "common/text/tokenizer_json_components.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <string>

#include "common/text/metaspace.h"
#include "common/text/pre_tokenizer_table.h"

namespace flotilla::internal {
namespace {

// What keeps a small file from taking much memory or time; models have at most 6 and 1.
constexpr size_t kMaxStages = 16;       // each is a compiled pattern
constexpr size_t kMaxTemplateIds = 64;  // before or after a text

// Calls read(element) for each element of the array.
template <typename Read>
Status ForEach(const JsonNode& array, Read read) {
  ASSIGN_OR_RETURN(const boost::json::array* elements, array.Array());
  for (size_t i = 0; i < elements->size(); ++i)
    RETURN_IF_ERROR(read(array.Element((*elements)[i], i)));
  return OkStatus();
}

StatusOr<std::string> Replacement(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string_view text, node.String());
  if (text.size() > Normalizer::kMaxReplacement)
    return node.Error(StrCat("has over ", Normalizer::kMaxReplacement, " bytes"));
  return std::string(text);
}

// {"String": " "}: the only kind of pattern that Replace is taken with.
StatusOr<std::string> LiteralPattern(const JsonNode& pattern) {
  if (!pattern["Regex"].is_null())
    return pattern.Error("is a regular expression; only a String is supported here");
  ASSIGN_OR_RETURN(const std::string_view text, pattern["String"].String());
  if (text.empty()) return pattern["String"].MustBe("not empty");
  return std::string(text);
}

Status ReadReplace(const JsonNode& node, Normalizer* normalizer) {
  ASSIGN_OR_RETURN(std::string from, LiteralPattern(node["pattern"]));
  ASSIGN_OR_RETURN(std::string to, Replacement(node["content"]));
  normalizer->AddReplace(std::move(from), std::move(to));
  return OkStatus();
}

}  // namespace

Status ReadNormalizer(const JsonNode& node, Normalizer* normalizer) {
  if (node.is_null()) return OkStatus();
  ASSIGN_OR_RETURN(const std::string_view type, node.Type());
  if (type == "Sequence") {
    return ForEach(node["normalizers"],
                   [&](const JsonNode& element) { return ReadNormalizer(element, normalizer); });
  }
  if (type == "NFC") {
    normalizer->AddNfc();
  } else if (type == "Replace") {
    RETURN_IF_ERROR(ReadReplace(node, normalizer));
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, Replacement(node["prepend"]));
    normalizer->AddPrepend(std::move(prefix));
  } else {
    return node.Unsupported(type, "NFC, Prepend, Replace, Sequence");
  }
  if (normalizer->num_steps() > Normalizer::kMaxSteps)
    return node.Error(StrCat("is one step too many: ", Normalizer::kMaxSteps, " are supported"));
  if (normalizer->growth() > Normalizer::kMaxGrowth) {
    return node.Error(StrCat("lets a text grow to over ", Normalizer::kMaxGrowth,
                             " times its bytes: not supported"));
  }
  return OkStatus();
}

// --- Pre-tokenizers ---

namespace {

Status ReadByteLevel(const JsonNode& node, PreTokenization* out) {
  ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool use_regex, node["use_regex"].BoolOr(true));
  if (prefix) return node["add_prefix_space"].Error("is true, which is not supported");
  if (out->byte_level) return node.Error("is a second ByteLevel, which is not supported");
  if (use_regex) out->stages.push_back({.pattern = kGpt2Words});
  out->byte_level = true;
  return OkStatus();
}

Status ReadDigits(const JsonNode& node, PreTokenization* out) {
  ASSIGN_OR_RETURN(const bool individual, node["individual_digits"].BoolOr(false));
  if (!out->byte_level) {
    out->stages.push_back({.pattern = individual ? kDigit : kDigits});
    return OkStatus();
  }
  if (individual) return node.Error("is individual Digits after ByteLevel: not supported");
  out->stages.push_back({.pattern = kByteLevelDigits, .of_bytes = true});
  return OkStatus();
}

Status ReadPunctuation(const JsonNode& node, PreTokenization* out) {
  const JsonNode behavior = node["behavior"];
  std::string_view how = "Isolated";
  if (!behavior.is_null()) {
    ASSIGN_OR_RETURN(how, behavior.String());
  }
  if (how != "Isolated" && how != "Contiguous") {
    return behavior.Error(StrCat("is '", how.substr(0, 64), "'; known: Contiguous, Isolated"));
  }
  if (out->byte_level) return node.Error("is Punctuation after ByteLevel: not supported");
  out->stages.push_back({.pattern = how == "Isolated" ? kPunctuation : kPunctuations});
  return OkStatus();
}

Status ReadMetaspace(const JsonNode& node, PreTokenization* out) {
  if (!out->stages.empty() || out->byte_level || out->metaspace.num_steps() > 0)
    return node.Error("is a Metaspace after another pre-tokenizer: not supported");
  ASSIGN_OR_RETURN(const std::string_view replacement, node["replacement"].String());
  if (replacement != kMetaspace) return node["replacement"].MustBe("'▁'");
  ASSIGN_OR_RETURN(const bool split, node["split"].BoolOr(true));
  // Files of before 2024 have add_prefix_space instead.
  ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].BoolOr(true));
  std::string_view scheme = prefix ? "always" : "never";
  if (const JsonNode written = node["prepend_scheme"]; !written.is_null()) {
    ASSIGN_OR_RETURN(scheme, written.String());
    if (scheme != "always" && scheme != "first" && scheme != "never")
      return written.MustBe("always, first or never");
  }
  out->metaspace.AddReplace(" ", std::string(kMetaspace));
  if (scheme != "never")
    out->metaspace.AddPrependUnlessThere(std::string(kMetaspace), scheme == "first");
  if (split) out->stages.push_back({.pattern = kMetaspaceWords});
  return OkStatus();
}

Status ReadSplit(const JsonNode& node, PreTokenization* out) {
  ASSIGN_OR_RETURN(const std::string_view behavior, node["behavior"].String());
  ASSIGN_OR_RETURN(const bool invert, node["invert"].BoolOr(false));
  const JsonNode literal = node["pattern"]["String"];
  if (!literal.is_null()) {
    ASSIGN_OR_RETURN(const std::string_view text, literal.String());
    if (text != " " || behavior != "MergedWithPrevious" || invert || out->byte_level) {
      return node.Error(
          "splits at a String; supported is only ' ', MergedWithPrevious, not inverted");
    }
    out->stages.push_back({.pattern = kWordsAfterSpace});
    return OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string_view regex, node["pattern"]["Regex"].String());
  const std::string_view pattern = FindSplitPattern(regex);
  if (pattern.empty()) {
    return node["pattern"].Error(StrCat("is the regular expression '", regex.substr(0, 1024),
                                        "', which is not one of pre_tokenizer_table.cc"));
  }
  const bool removed = behavior == "Removed" && invert;
  if (!removed && (behavior != "Isolated" || invert)) {
    return node.Error(StrCat("has the behavior '", behavior.substr(0, 64),
                             invert ? "', inverted" : "'",
                             "; known: Isolated, and Removed inverted"));
  }
  if (out->byte_level && pattern != kThreeDigits)
    return node.Error("is a Split after ByteLevel: not supported");
  out->stages.push_back({.pattern = pattern, .of_bytes = out->byte_level, .drop_gaps = removed});
  return OkStatus();
}

}  // namespace

Status ReadPreTokenizer(const JsonNode& node, PreTokenization* out) {
  if (node.is_null()) return OkStatus();
  ASSIGN_OR_RETURN(const std::string_view type, node.Type());
  if (type == "Sequence") {
    return ForEach(node["pretokenizers"],
                   [&](const JsonNode& element) { return ReadPreTokenizer(element, out); });
  }
  if (out->stages.size() >= kMaxStages)
    return node.Error(StrCat("is one stage too many: ", kMaxStages, " are supported"));
  if (type == "ByteLevel") return ReadByteLevel(node, out);
  if (type == "Digits") return ReadDigits(node, out);
  if (type == "Metaspace") return ReadMetaspace(node, out);
  if (type == "Punctuation") return ReadPunctuation(node, out);
  if (type == "Split") return ReadSplit(node, out);
  return node.Unsupported(type, "ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split");
}

// --- Decoders and post-processors ---

namespace {

Status ReadDecoderReplace(const JsonNode& node, Decoding* out) {
  ASSIGN_OR_RETURN(const std::string from, LiteralPattern(node["pattern"]));
  ASSIGN_OR_RETURN(const std::string_view to, node["content"].String());
  if (from != kMetaspace || to != " ") return node.Error("replaces something else than '▁' by ' '");
  out->metaspace = true;
  return OkStatus();
}

Status ReadDecoderStrip(const JsonNode& node, Decoding* out) {
  ASSIGN_OR_RETURN(const std::string_view content, node["content"].String());
  ASSIGN_OR_RETURN(const uint32_t start, node["start"].Uint(UINT32_MAX));
  ASSIGN_OR_RETURN(const uint32_t stop, node["stop"].Uint(UINT32_MAX));
  if (content != " " || start > 1 || stop > 0)
    return node.Error("strips something else than one ' ' at the start");
  out->strips_leading_space = start == 1;
  return OkStatus();
}

// Of {"SpecialToken": {"id": "<s>"}}: the ids that special_tokens gives for it.
Status ReadTemplateToken(const JsonNode& piece, const JsonNode& special_tokens, uint32_t num_tokens,
                         std::vector<TokenId>* ids) {
  ASSIGN_OR_RETURN(const std::string_view name, piece["SpecialToken"]["id"].String());
  return ForEach(special_tokens[name]["ids"], [&](const JsonNode& element) -> Status {
    if (ids->size() >= kMaxTemplateIds)
      return element.Error(StrCat("is one id too many: ", kMaxTemplateIds, " are supported"));
    ASSIGN_OR_RETURN(const uint32_t id, element.Uint(num_tokens - 1));
    ids->push_back(static_cast<TokenId>(id));
    return OkStatus();
  });
}

Status ReadTemplate(const JsonNode& node, uint32_t num_tokens, SpecialIds* out) {
  if (!out->prefix.empty() || !out->suffix.empty())
    return node.Error("is a second TemplateProcessing, which is not supported");
  bool after = false;
  RETURN_IF_ERROR(ForEach(node["single"], [&](const JsonNode& piece) -> Status {
    if (piece["Sequence"].is_null()) {
      return ReadTemplateToken(piece, node["special_tokens"], num_tokens,
                               after ? &out->suffix : &out->prefix);
    }
    if (after) return piece.Error("is a second text in the template: not supported");
    after = true;
    return OkStatus();
  }));
  if (!after) return node["single"].Error("has no Sequence: the text would be left out");
  return OkStatus();
}

}  // namespace

Status ReadDecoder(const JsonNode& node, Decoding* out) {
  if (node.is_null()) return OkStatus();
  ASSIGN_OR_RETURN(const std::string_view type, node.Type());
  if (type == "Sequence") {
    return ForEach(node["decoders"],
                   [&](const JsonNode& element) { return ReadDecoder(element, out); });
  }
  if (type == "ByteLevel") {
    out->byte_level = true;
    return OkStatus();
  }
  if (type == "ByteFallback") {
    out->byte_fallback = true;
    return OkStatus();
  }
  if (type == "Fuse") return OkStatus();  // the tokens are joined in any case
  if (type == "Replace") return ReadDecoderReplace(node, out);
  if (type == "Strip") return ReadDecoderStrip(node, out);
  return node.Unsupported(type, "ByteFallback, ByteLevel, Fuse, Replace, Sequence, Strip");
}

Status ReadPostProcessor(const JsonNode& node, uint32_t num_tokens, SpecialIds* out) {
  if (node.is_null()) return OkStatus();
  ASSIGN_OR_RETURN(const std::string_view type, node.Type());
  if (type == "Sequence") {
    return ForEach(node["processors"], [&](const JsonNode& element) {
      return ReadPostProcessor(element, num_tokens, out);
    });
  }
  if (type == "ByteLevel") return OkStatus();  // changes offsets, never ids
  if (type == "TemplateProcessing") return ReadTemplate(node, num_tokens, out);
  return node.Unsupported(type, "ByteLevel, Sequence, TemplateProcessing");
}

}  // namespace flotilla::internal
