#include "router/discovery/endpoint_slices.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/listen.h"
#include "common/base/strict_json.h"

namespace flotilla {
namespace {

namespace json = boost::json;

constexpr size_t kMaxNameBytes = 253;  // of a DNS name

bool IsDnsName(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  return !text.empty() && text.size() <= kMaxNameBytes &&
         std::all_of(text.begin(), text.end(), allowed);
}

const json::object* ObjectIn(const json::object& parent, std::string_view name) {
  const json::value* const found = parent.if_contains(name);
  return found == nullptr ? nullptr : found->if_object();
}

const json::array* ArrayIn(const json::object& parent, std::string_view name) {
  const json::value* const found = parent.if_contains(name);
  return found == nullptr ? nullptr : found->if_array();
}

// Empty if absent.
std::string_view TextIn(const json::object& parent, std::string_view name) {
  const json::value* const found = parent.if_contains(name);
  if (found == nullptr || !found->is_string()) return {};
  return {found->get_string().data(), found->get_string().size()};
}

std::string_view TextIn(const json::object* parent, std::string_view name) {
  return parent == nullptr ? std::string_view() : TextIn(*parent, name);
}

bool IsLeaving(const json::object& endpoint) {
  const json::object* const conditions = ObjectIn(endpoint, "conditions");
  const json::value* const terminating =
      conditions == nullptr ? nullptr : conditions->if_contains("terminating");
  return terminating != nullptr && terminating->is_bool() && terminating->get_bool();
}

Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(StrCat("the API server's answer is no ", what));
}

StatusOr<json::value> ParseObject(std::string_view text, std::string_view what) {
  json::value value;
  StrictJsonError error;
  if (!ParseStrictJson(text, &value, &error) || !value.is_object()) return Wrong(what);
  return value;
}

}  // namespace

StatusOr<ServiceName> ParseServiceName(std::string_view text) {
  ServiceName name;
  std::string_view rest = text;
  bool right = true;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    name.kube_namespace = std::string(rest.substr(0, slash));
    right = IsDnsName(name.kube_namespace);
    rest.remove_prefix(slash + 1);
  }
  const size_t colon = rest.find(':');
  name.service = std::string(rest.substr(0, colon));
  const std::string port(colon == std::string_view::npos ? "" : rest.substr(colon + 1));
  uint32_t number = 0;
  if (absl::SimpleAtoi(port, &number)) {
    right = right && number > 0 && number <= UINT16_MAX;
    name.port = static_cast<uint16_t>(number);
  } else {
    const bool has_letter = std::any_of(port.begin(), port.end(), [](char c) { return c >= 'a'; });
    right = right && IsDnsName(port) && has_letter && port.front() != '-';
    name.port_name = port;
  }
  if (!right || !IsDnsName(name.service))
    return absl::InvalidArgumentError(StrCat("'", text,
                                             "' is no [NAMESPACE/]SERVICE:PORT with a port from 1 "
                                             "to 65535 or a port's name"));
  return name;
}

Status EndpointSlices::TakeList(std::string_view text) {
  constexpr std::string_view kWhat = "EndpointSliceList";
  ASSIGN_OR_RETURN(const json::value list, ParseObject(text, kWhat));
  const std::string_view version =
      TextIn(ObjectIn(list.get_object(), "metadata"), "resourceVersion");
  const json::array* const items = ArrayIn(list.get_object(), "items");
  if (version.empty() || items == nullptr) return Wrong(kWhat);
  decltype(slices_) slices;
  for (const json::value& item : *items) {
    const json::object* const slice = item.if_object();
    const std::string_view name =
        slice == nullptr ? std::string_view() : TextIn(ObjectIn(*slice, "metadata"), "name");
    if (name.empty()) return Wrong(kWhat);
    slices.insert_or_assign(std::string(name), Read(*slice));
  }
  slices_ = std::move(slices);
  resource_version_ = std::string(version);
  return OkStatus();
}

Status EndpointSlices::TakeEvent(std::string_view text) {
  constexpr std::string_view kWhat = "event of EndpointSlices";
  ASSIGN_OR_RETURN(const json::value event, ParseObject(text, kWhat));
  const std::string_view type = TextIn(event.get_object(), "type");
  const json::object* const object = ObjectIn(event.get_object(), "object");
  if (object == nullptr) return Wrong(kWhat);
  // Most often 410, "Expired": the version that the watch began at is too old.
  if (type == "ERROR")
    return absl::AbortedError(StrCat("the watch ended: ", TextIn(*object, "message")));
  const json::object* const metadata = ObjectIn(*object, "metadata");
  const std::string_view version = TextIn(metadata, "resourceVersion");
  const std::string_view name = TextIn(metadata, "name");
  if (version.empty()) return Wrong(kWhat);
  if (type == "ADDED" || type == "MODIFIED") {
    if (name.empty()) return Wrong(kWhat);
    slices_.insert_or_assign(std::string(name), Read(*object));
  } else if (type == "DELETED") {
    if (const auto gone = slices_.find(name); gone != slices_.end()) slices_.erase(gone);
  } else if (type != "BOOKMARK") {
    return Wrong(kWhat);
  }
  resource_version_ = std::string(version);
  return OkStatus();
}

uint16_t EndpointSlices::PortOf(const json::object& slice) const {
  if (name_.port_name.empty()) return name_.port;
  const json::array* const ports = ArrayIn(slice, "ports");
  for (size_t i = 0; ports != nullptr && i < ports->size(); ++i) {
    const json::object* const port = (*ports)[i].if_object();
    if (port == nullptr || TextIn(*port, "name") != name_.port_name) continue;
    const json::value* const number = port->if_contains("port");
    if (number != nullptr && number->is_int64() && number->get_int64() > 0 &&
        number->get_int64() <= UINT16_MAX)
      return static_cast<uint16_t>(number->get_int64());
  }
  return 0;
}

EndpointSlices::Slice EndpointSlices::Read(const json::object& object) const {
  Slice slice;
  const std::string_view type = TextIn(object, "addressType");
  slice.ipv4 = type == "IPv4";
  const uint16_t port = PortOf(object);
  const json::array* const endpoints = ArrayIn(object, "endpoints");
  if ((!slice.ipv4 && type != "IPv6") || port == 0 || endpoints == nullptr) return slice;
  for (const json::value& each : *endpoints) {
    const json::object* const endpoint = each.if_object();
    if (endpoint == nullptr || IsLeaving(*endpoint)) continue;
    const json::array* const addresses = ArrayIn(*endpoint, "addresses");
    // Of several addresses of an endpoint all mean the same.
    if (addresses == nullptr || addresses->empty() || !addresses->front().is_string()) continue;
    slice.addresses.insert(HostPort(std::string(addresses->front().get_string()), port));
  }
  return slice;
}

std::vector<std::string> EndpointSlices::Addresses() const {
  std::set<std::string> v4, v6;
  for (const auto& [name, slice] : slices_)
    (slice.ipv4 ? v4 : v6).insert(slice.addresses.begin(), slice.addresses.end());
  const std::set<std::string>& all = v4.empty() ? v6 : v4;
  return {all.begin(), all.end()};
}

}  // namespace flotilla
