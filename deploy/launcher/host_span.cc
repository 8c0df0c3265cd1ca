#include "deploy/launcher/host_span.h"

#include "absl/strings/numbers.h"

namespace flotilla {
namespace {

Status Bad(std::string_view flag, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(flag, ": ", what));
}

// Ranks from 1 to below `ranks` have ports of their own above the address's.
StatusOr<TcpAddress> JoinAddress(std::string_view flag, const std::string& text, uint32_t ranks) {
  StatusOr<TcpAddress> address = ParseTcpAddress(text);
  if (!address.ok()) return Annotate(address.status(), flag);
  if (address->port == 0 || address->port + ranks > 65536) {
    return Bad(flag, StrCat("there must be ", ranks, " ports from ", address->port, " on"));
  }
  return address;
}

StatusOr<uint32_t> RanksOf(const std::string& tp, std::string_view flag) {
  uint32_t ranks = 0;
  if (!absl::SimpleAtoi(tp, &ranks)) {
    return Bad(flag, "needs --tp with the number of all ranks of the replica");
  }
  return ranks;
}

}  // namespace

StatusOr<HostSpan> SpanOfHead(const ServeOptions& options) {
  HostSpan span;
  span.remote_ranks = options.remote_ranks;
  if (options.remote_ranks == 0) {
    if (!options.join_address.empty()) return Bad("--join-address", "needs --remote-ranks");
    if (!options.link_secret_file.empty()) return Bad("--link-secret-file", "needs --remote-ranks");
    return span;
  }
  ASSIGN_OR_RETURN(const uint32_t ranks, RanksOf(options.tp, "--remote-ranks"));
  if (options.remote_ranks >= ranks) {
    return Bad("--remote-ranks", StrCat(options.remote_ranks, " of --tp ", ranks,
                                        " leave none for this host, which has the first"));
  }
  if (options.replicas != 1) {
    return Bad("--remote-ranks", "a replica that spans hosts is the only one of its launcher");
  }
  if (options.link_secret_file.empty()) return Bad("--remote-ranks", "needs --link-secret-file");
  span.link_secret_file = options.link_secret_file;
  span.local_ranks = ranks - options.remote_ranks;
  ASSIGN_OR_RETURN(span.join, JoinAddress("--join-address", options.join_address, ranks));
  return span;
}

StatusOr<HostSpan> SpanOfJoin(const ServeOptions& options) {
  HostSpan span;
  span.joined = true;
  ASSIGN_OR_RETURN(const uint32_t ranks, RanksOf(options.tp, "--rank"));
  if (options.rank == 0 || options.rank >= ranks) {
    return Bad("--rank",
               StrCat(options.rank, " is not from 1 to below --tp ", ranks, "; the head has 0"));
  }
  span.first_rank = options.rank;
  span.link_secret_file = options.link_secret_file;
  ASSIGN_OR_RETURN(span.join, JoinAddress("--head", options.head, ranks));
  return span;
}

}  // namespace flotilla
