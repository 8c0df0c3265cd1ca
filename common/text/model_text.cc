#include "common/text/model_text.h"

#include <boost/json/array.hpp>
#include <filesystem>
#include <optional>
#include <vector>

#include "common/base/wire.h"
#include "common/checkpoint/gguf.h"
#include "common/checkpoint/gguf_shards.h"
#include "common/checkpoint/json_object.h"
#include "common/text/tokenizer_json.h"

namespace flotilla {
namespace {

using internal::JsonObject;

constexpr std::string_view kBundleMagic = "FLTEXT1\n";
// Before a template and the bytes of a model that it is used for.
constexpr std::string_view kTemplateMagic = "FLTCHAT1";
constexpr size_t kMaxTemplateBytes = 1u << 20;
constexpr size_t kMaxConfigBytes = 16u << 20;
constexpr char kTokenizerConfig[] = "tokenizer_config.json: ";  // before an error

// The texts of a folder's files; what is not there is empty.
struct FolderFiles {
  std::string_view tokenizer;
  std::string_view tokenizer_config;
  std::string_view chat_template;
  std::string_view generation_config;
};

// "</s>" or {"content": "</s>", …}.
StatusOr<std::optional<std::string>> SpecialToken(const JsonObject& config, std::string_view key) {
  if (!config.Has(key)) return std::optional<std::string>();
  if (config.value().at({key.data(), key.size()}).is_object()) {
    ASSIGN_OR_RETURN(const JsonObject token, config.Object(key));
    ASSIGN_OR_RETURN(const std::string_view content, token.String("content"));
    return std::optional<std::string>(content);
  }
  ASSIGN_OR_RETURN(const std::string_view text, config.String(key));
  return std::optional<std::string>(text);
}

// The template, or those of several that are named "default" and "tool_use".
struct ChatTemplates {
  std::string plain;
  std::optional<std::string> tool_use;
};
StatusOr<ChatTemplates> ChatTemplatesOf(const JsonObject& config) {
  constexpr const char* kKey = "chat_template";
  if (!config.Has(kKey)) {
    return absl::NotFoundError(
        "the model folder has no chat template (chat_template.jinja or tokenizer_config.json: "
        "chat_template)");
  }
  const boost::json::array* choices = config.value().at(kKey).if_array();
  if (choices == nullptr) {
    ASSIGN_OR_RETURN(const std::string_view text, config.String(kKey));
    return ChatTemplates{std::string(text), std::nullopt};
  }
  std::optional<std::string> plain, tool_use;
  for (const boost::json::value& choice : *choices) {
    if (!choice.is_object()) continue;
    const JsonObject named(&choice.get_object(), "tokenizer_config.json: chat_template.");
    ASSIGN_OR_RETURN(const std::string_view name, named.String("name"));
    if (name != "default" && name != "tool_use") continue;
    ASSIGN_OR_RETURN(const std::string_view text, named.String("template"));
    (name == "default" ? plain : tool_use) = std::string(text);
  }
  if (!plain.has_value()) return config.Error(kKey, "has no template named 'default'");
  return ChatTemplates{*std::move(plain), std::move(tool_use)};
}

StatusOr<boost::json::value> ParseTokenizerConfig(std::string_view text) {
  return internal::ParseJsonObject("tokenizer_config.json", text.empty() ? "{}" : text,
                                   kMaxConfigBytes);
}

StatusOr<ChatFormat> ReadChatFormat(const FolderFiles& files,
                                    const StatusOr<boost::json::value>& document) {
  RETURN_IF_ERROR(document.status());
  const JsonObject config(&document->get_object(), kTokenizerConfig);
  ChatTemplates templates{std::string(files.chat_template), std::nullopt};
  if (templates.plain.empty()) {
    ASSIGN_OR_RETURN(templates, ChatTemplatesOf(config));
  }
  ASSIGN_OR_RETURN(std::optional<std::string> bos, SpecialToken(config, "bos_token"));
  ASSIGN_OR_RETURN(std::optional<std::string> eos, SpecialToken(config, "eos_token"));
  return ChatFormat::Create(templates.plain, std::move(bos), std::move(eos), templates.tool_use);
}

// generation_config.json's eos_token_id: a number or several.
StatusOr<std::vector<TokenId>> ReadEosIds(std::string_view text) {
  std::vector<TokenId> ids;
  if (text.empty()) return ids;
  ASSIGN_OR_RETURN(const boost::json::value document,
                   internal::ParseJsonObject("generation_config.json", text, kMaxConfigBytes));
  const JsonObject config(&document.get_object(), "generation_config.json: ");
  constexpr const char* kKey = "eos_token_id";
  if (!config.Has(kKey)) return ids;
  const auto add = [&](const boost::json::value& value) -> Status {
    const int64_t* id = value.if_int64();
    if (id == nullptr || *id < 0 || *id > INT32_MAX)
      return config.Error(kKey, "must be a token's id, or an array of these");
    ids.push_back(static_cast<TokenId>(*id));
    return OkStatus();
  };
  const boost::json::value& value = config.value().at(kKey);
  if (!value.is_array()) {
    RETURN_IF_ERROR(add(value));
    return ids;
  }
  for (const boost::json::value& element : value.get_array()) RETURN_IF_ERROR(add(element));
  return ids;
}

// tokenizer_config.json's eos_token, for where no generation_config.json says what ends a text. A
// damaged one is the chat format's to complain of: a text alone needs none.
std::string EosToken(const StatusOr<boost::json::value>& document) {
  if (!document.ok()) return "";
  const auto token =
      SpecialToken(JsonObject(&document->get_object(), kTokenizerConfig), "eos_token");
  return token.ok() ? token->value_or("") : "";
}

StatusOr<ModelText> FromFolderFiles(const FolderFiles& files) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> eos_ids, ReadEosIds(files.generation_config));
  const StatusOr<boost::json::value> config = ParseTokenizerConfig(files.tokenizer_config);
  ModelText text;
  ASSIGN_OR_RETURN(text.tokenizer,
                   CreateTokenizerFromJson(files.tokenizer, eos_ids, EosToken(config)));
  text.chat_format = ReadChatFormat(files, config);
  ASSIGN_OR_RETURN(text.sampling, ParseSamplingDefaults(files.generation_config));
  return text;
}

StatusOr<ModelText> FromGguf(const GgufFile& gguf) {
  ModelText text;
  ASSIGN_OR_RETURN(text.tokenizer, CreateTokenizer(gguf));
  text.chat_format = ChatFormat::Create(gguf);
  text.sampling = SamplingDefaultsOf(gguf);
  return text;
}

std::string_view Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

StatusOr<ModelText> OpenFolder(const std::filesystem::path& folder, std::string* bytes) {
  std::vector<MappedFile> mapped;
  // The file's text; empty if it is not there and need not be.
  const auto open = [&](const char* name, bool needed) -> StatusOr<std::string_view> {
    StatusOr<MappedFile> file = MappedFile::Open(folder / name);
    std::error_code ignored;
    const bool empty = std::filesystem::file_size(folder / name, ignored) == 0;
    if (!needed && (empty || absl::IsNotFound(file.status()))) return std::string_view();
    if (!file.ok()) return file.status();
    mapped.push_back(*std::move(file));
    return Text(mapped.back());
  };
  FolderFiles files;
  ASSIGN_OR_RETURN(files.tokenizer, open("tokenizer.json", true));
  ASSIGN_OR_RETURN(files.tokenizer_config, open("tokenizer_config.json", false));
  ASSIGN_OR_RETURN(files.chat_template, open("chat_template.jinja", false));
  ASSIGN_OR_RETURN(files.generation_config, open("generation_config.json", false));
  if (bytes != nullptr) {
    *bytes = kBundleMagic;
    WireWriter writer(bytes);
    writer.PutBytes(files.tokenizer);
    writer.PutBytes(files.tokenizer_config);
    writer.PutBytes(files.chat_template);
    writer.PutBytes(files.generation_config);
  }
  return FromFolderFiles(files);
}

StatusOr<ModelText> OpenGguf(const std::string& path, std::string* bytes) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(file.bytes(), {.metadata_only = true}));
  RETURN_IF_ERROR(CheckFirstShard(gguf, path));
  if (bytes != nullptr) *bytes = Text(file).substr(0, gguf.header_bytes());
  return FromGguf(gguf);
}

// A model without a template has special tokens all the same.
Status SetChatTemplate(std::string_view source, ModelText* text) {
  const Tokenizer& tokenizer = *text->tokenizer;
  const auto text_of = [&](TokenId id) {
    return id < 0 ? std::optional<std::string>() : std::string(tokenizer.TokenBytes(id));
  };
  const std::vector<TokenId> eos_ids = tokenizer.eos_ids();
  StatusOr<ChatFormat> format =
      text->chat_format.ok() ? text->chat_format->WithTemplate(source)
                             : ChatFormat::Create(source, text_of(tokenizer.bos_id()),
                                                  text_of(eos_ids.empty() ? -1 : eos_ids.front()));
  RETURN_IF_ERROR(format.status());
  text->chat_format = std::move(format);
  return OkStatus();
}

// Of either kind.
StatusOr<ModelText> ParseModel(std::string_view bytes) {
  if (!bytes.starts_with(kBundleMagic)) {
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    ASSIGN_OR_RETURN(const GgufFile gguf,
                     GgufFile::Parse({data, bytes.size()}, {.metadata_only = true}));
    return FromGguf(gguf);
  }
  WireReader reader(bytes.substr(kBundleMagic.size()));
  FolderFiles files;
  files.tokenizer = reader.GetBytes();
  files.tokenizer_config = reader.GetBytes();
  files.chat_template = reader.GetBytes();
  files.generation_config = reader.GetBytes();
  if (!reader.AtEnd())
    return absl::InvalidArgumentError("the bundle of tokenizer files is damaged");
  return FromFolderFiles(files);
}

}  // namespace

StatusOr<ModelText> ParseModelText(std::string_view bytes) {
  if (!bytes.starts_with(kTemplateMagic)) return ParseModel(bytes);
  WireReader reader(bytes.substr(kTemplateMagic.size()));
  const std::string_view source = reader.GetBytes();
  const std::string_view model = reader.GetBytes();
  if (!reader.AtEnd())
    return absl::InvalidArgumentError("the model's text behind a chat template is damaged");
  ASSIGN_OR_RETURN(ModelText text, ParseModel(model));
  RETURN_IF_ERROR(SetChatTemplate(source, &text));
  return text;
}

Status UseChatTemplate(const std::string& path, ModelText* text, std::string* bytes) {
  const StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return Annotate(file.status(), path);
  const std::string_view source = Text(*file);
  if (source.size() > kMaxTemplateBytes)
    return absl::InvalidArgumentError(StrCat(path, " has more than ", kMaxTemplateBytes, " bytes"));
  RETURN_IF_ERROR(Annotate(SetChatTemplate(source, text), path));
  std::string behind(kTemplateMagic);
  WireWriter writer(&behind);
  writer.PutBytes(source);
  writer.PutBytes(*bytes);
  *bytes = std::move(behind);
  return OkStatus();
}

StatusOr<ModelText> OpenModelText(const std::string& path, std::string* bytes) {
  std::error_code error;
  StatusOr<ModelText> text =
      std::filesystem::is_directory(path, error) ? OpenFolder(path, bytes) : OpenGguf(path, bytes);
  if (!text.ok()) return Annotate(text.status(), path);
  return text;
}

}  // namespace flotilla
