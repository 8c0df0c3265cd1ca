#include "common/rpc/call_request_id.h"

#include "common/base/request_id.h"

namespace flotilla {

std::string MetadataText(const grpc::CallbackServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::string TakeRequestId(grpc::CallbackServerContext* context, const std::string& given) {
  std::string id = given;
  if (id.empty()) {
    id = MetadataText(*context, kRequestIdHeader);
    if (!IsRequestId(id)) id = NewRequestId();
  }
  if (IsRequestId(id)) context->AddInitialMetadata(kRequestIdHeader, id);
  return id;
}

}  // namespace flotilla
