// The head of the GGUF that FLOTILLA_TEST_MODEL names: all that a router fetches of a replica.
//
// Threads: any.
#pragma once

#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <string>

#include "common/text/tokenizer.h"
#include "flotilla/v1/engine.pb.h"

namespace flotilla {

// Loaded once. Fails the process with the way out if FLOTILLA_TEST_MODEL is not set.
struct TestModel {
  std::string header;
  std::string sha256;
  std::unique_ptr<Tokenizer> tokenizer;
};
const TestModel& GetTestModel();
// The same with a chat template that shows tools, as JSON before all else, if there are any.
const TestModel& GetToolsTestModel();
// What FetchModelFile answers.
void SendHead(const TestModel& model, grpc::ServerWriter<v1::FileChunk>* writer);

}  // namespace flotilla
