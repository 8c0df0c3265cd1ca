#include "tests/fakes/test_model.h"

#include <grpc/grpc.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/base/check.h"
#include "common/base/sha256.h"
#include "common/checkpoint/gguf.h"

namespace flotilla {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

TestModel* LoadTestModel() {
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
  model->sha256 = Sha256Hex(model->header);
  model->tokenizer = std::move(*tokenizer);
  return model;
}

}  // namespace

const TestModel& GetTestModel() {
  static const TestModel* const model = LoadTestModel();
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
