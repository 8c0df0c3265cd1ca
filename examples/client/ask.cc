// Asks a model one question by gRPC and prints the answer as it comes.
//
//   ask ADDRESS QUESTION      e.g. ask 127.0.0.1:50051 "What is the capital of France?"
//
// Errors: a line on stderr and exit status 1; 2: wrong arguments.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "flotilla/v1/inference.grpc.pb.h"

namespace {

constexpr std::chrono::seconds kDeadline(120);
constexpr int kMaxTokens = 64;

void AddMessage(const char* role, const char* content, flotilla::v1::ChatRequest* request) {
  flotilla::v1::ChatMessage* message = request->add_messages();
  message->set_role(role);
  message->set_content(content);
}

int Ask(const char* address, const char* question) {
  const auto stub = flotilla::v1::Inference::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  flotilla::v1::ChatRequest request;
  AddMessage("system", "You are a helpful assistant.", &request);
  AddMessage("user", question, &request);
  request.mutable_base()->mutable_sampling()->set_temperature(0);
  request.mutable_base()->mutable_stopping()->set_max_tokens(kMaxTokens);

  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  const auto stream = stub->Chat(&context, request);
  flotilla::v1::GenerateResponse response;
  while (stream->Read(&response)) {
    for (const flotilla::v1::ChoiceDelta& choice : response.choices())
      std::fputs(choice.text().c_str(), stdout);
    std::fflush(stdout);
  }
  std::fputs("\n", stdout);
  const grpc::Status status = stream->Finish();
  if (status.ok()) return 0;
  std::fprintf(stderr, "ask: %s: %s\n", address, status.error_message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: ask ADDRESS QUESTION\n");
    return 2;
  }
  return Ask(argv[1], argv[2]);
}
