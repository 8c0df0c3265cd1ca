// A gRPC call's request id: from the message, else from the metadata x-request-id, else a new one;
// told to the client in the initial metadata.
//
// Threads: the call's, before anything is written or finished. `context` is not kept.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

namespace flotilla {

// `given`: the message's field. What is no request id there is returned as it is, for the check of
// fields to refuse; in the metadata it is passed over.
std::string TakeRequestId(grpc::CallbackServerContext* context, const std::string& given);

// What the client sent under `key`; empty: nothing.
std::string MetadataText(const grpc::CallbackServerContext& context, const char* key);

}  // namespace flotilla
