// The pods of a Kubernetes Service, as the API server's EndpointSlices tell them: a list first,
// then the events of a watch.
//
// Every pod that has an address and is not being deleted counts, ready or not: whether a replica
// takes requests it says itself, on its stream, but that it is about to leave Kubernetes knows
// first. Of a Service with both families, whose pods are told twice, the IPv4 addresses count.
// Threads: one. Errors: InvalidArgument (not what an API server writes; nothing was
// changed), Aborted (the server wants the list to be asked for again).
// Source: the Kubernetes API, discovery.k8s.io/v1.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace flotilla {

struct ServiceName {
  std::string kube_namespace = {};  // empty: the router's own
  std::string service = {};
  std::string port_name = {};  // as the slices call it; empty: the number
  uint16_t port = 0;
};
// "[NAMESPACE/]SERVICE:PORT", PORT a number or a port's name.
StatusOr<ServiceName> ParseServiceName(std::string_view text);

class EndpointSlices {
 public:
  explicit EndpointSlices(ServiceName name) : name_(std::move(name)) {}

  // An EndpointSliceList, which takes the place of all that was known.
  Status TakeList(std::string_view json);
  // A line of a watch.
  Status TakeEvent(std::string_view json);

  // Rising, each once.
  std::vector<std::string> Addresses() const;
  // Where a watch goes on from.
  const std::string& resource_version() const { return resource_version_; }

 private:
  struct Slice {
    bool ipv4 = false;
    std::set<std::string> addresses;
  };
  Slice Read(const boost::json::object& object) const;
  // Of a slice's ports that which name_ means; 0: it has none.
  uint16_t PortOf(const boost::json::object& slice) const;

  const ServiceName name_;
  std::map<std::string, Slice, std::less<>> slices_;  // by name
  std::string resource_version_;
};

}  // namespace flotilla
