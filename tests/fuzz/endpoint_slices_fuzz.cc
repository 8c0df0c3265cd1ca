// libFuzzer: any answers of an API server, as a list of EndpointSlices and as events of a watch.
// What is refused changes nothing; what is taken names each address once, with a port.
//
// The input is a list of pieces (fuzz_input.h): a list first, then events; each also as the name of
// a Service.
#include <algorithm>
#include <functional>

#include "common/base/check.h"
#include "router/discovery/endpoint_slices.h"
#include "tests/fuzz/fuzz_input.h"

namespace flotilla {
namespace {

void Take(std::string_view text, bool list, EndpointSlices* slices) {
  const std::vector<std::string> before = slices->Addresses();
  const std::string version = slices->resource_version();
  const Status status = list ? slices->TakeList(text) : slices->TakeEvent(text);
  const std::vector<std::string> after = slices->Addresses();
  if (!status.ok()) {
    CHECK(absl::IsInvalidArgument(status) || absl::IsAborted(status));
    CHECK(after == before && slices->resource_version() == version);
    return;
  }
  CHECK(!slices->resource_version().empty());
  CHECK(std::adjacent_find(after.begin(), after.end(), std::greater_equal<>()) == after.end());
  for (const std::string& address : after) {
    const size_t colon = address.rfind(':');
    CHECK(colon != std::string::npos && colon + 1 < address.size());
  }
}

// What is taken goes into a URL as it is.
void Name(std::string_view text) {
  const StatusOr<ServiceName> name = ParseServiceName(text);
  if (!name.ok()) return;
  CHECK(!name->service.empty() && (name->port == 0) != name->port_name.empty());
  for (const std::string& part : {name->kube_namespace, name->service, name->port_name})
    CHECK(part.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos);
}

}  // namespace
}  // namespace flotilla

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::FuzzInput input(data, size);
  EndpointSlices by_number({.service = "engine", .port = 50051});
  EndpointSlices by_name({.service = "engine", .port_name = "grpc"});
  for (bool list = true; !input.empty(); list = false) {
    const fuzz::Piece piece = input.GetPiece();
    Name(piece.view());
    Take(piece.view(), list, &by_number);
    Take(piece.view(), list, &by_name);
    CHECK(by_name.resource_version() == by_number.resource_version());
  }
  return 0;
}
