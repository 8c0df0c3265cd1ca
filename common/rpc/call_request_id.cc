#include "common/rpc/call_request_id.h"

#include "common/base/request_id.h"

namespace flotilla {

std::string TakeRequestId(grpc::CallbackServerContext* context, const std::string& given) {
  std::string id = given;
  if (id.empty()) {
    const auto& metadata = context->client_metadata();
    const auto found = metadata.find(kRequestIdHeader);
    if (found != metadata.end()) id.assign(found->second.data(), found->second.size());
    if (!IsRequestId(id)) id = NewRequestId();
  }
  if (IsRequestId(id)) context->AddInitialMetadata(kRequestIdHeader, id);
  return id;
}

}  // namespace flotilla
