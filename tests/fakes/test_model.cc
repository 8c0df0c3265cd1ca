#include "tests/fakes/test_model.h"

#include <grpc/grpc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/sha256.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

// In GGUF a key is followed by its type and, if it is a string's, by its length.
std::string ShowTools(std::string header) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  constexpr std::string_view kShow = "{% if tools %}{{ tools | tojson }}{% endif %}";
  const size_t at = header.find(kKey) + kKey.size() + sizeof(uint32_t);
  uint64_t length = 0;
  std::memcpy(&length, header.data() + at, sizeof(length));
  length += kShow.size();
  std::memcpy(header.data() + at, &length, sizeof(length));
  return header.insert(at + sizeof(length), kShow);
}

TestModel* LoadTestModel(bool shows_tools) {
  const char* path = std::getenv("FLOTILLA_TEST_MODEL");
  if (path == nullptr || *path == '\0') {
    std::fprintf(stderr,
                 "FLOTILLA_TEST_MODEL is not set: run the tests with ./flotilla test, which "
                 "fetches the default model and sets it.\n");
    std::exit(1);
  }
  StatusOr<MappedFile> file = MappedFile::Open(path);
  CHECK_OK(file.status());
  StatusOr<GgufFile> gguf = GgufFile::Parse(file->bytes(), {});
  CHECK_OK(gguf.status());
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(*gguf);
  CHECK_OK(tokenizer.status());
  grpc_init();  // never shut down: gRPC 1.51 may take 10 s for that
  auto* model = new TestModel;
  model->header.assign(reinterpret_cast<const char*>(file->bytes().data()), gguf->header_bytes());
  if (shows_tools) model->header = ShowTools(std::move(model->header));
  model->sha256 = Sha256Hex(model->header);
  model->tokenizer = std::move(*tokenizer);
  return model;
}

}  // namespace

const TestModel& GetTestModel() {
  static const TestModel* const model = LoadTestModel(/*shows_tools=*/false);
  return *model;
}

const TestModel& GetToolsTestModel() {
  static const TestModel* const model = LoadTestModel(/*shows_tools=*/true);
  return *model;
}

void SendHead(const TestModel& model, grpc::ServerWriter<v1::FileChunk>* writer) {
  v1::FileChunk chunk;
  for (size_t at = 0; at < model.header.size(); at += kChunkBytes) {
    chunk.set_data(model.header.substr(at, kChunkBytes));
    if (!writer->Write(chunk)) return;
  }
}

}  // namespace flotilla
