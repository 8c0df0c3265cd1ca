// Spans of a request that has ended, as OTLP's JSON (opentelemetry-proto 1.x, protobuf's JSON
// mapping: ids in hex, 64-bit numbers as texts).
//
//   POST /v1/…       a server's span: from the request's arrival in the router to its last piece
//     router         until the replica has it
//     queue          until it is scheduled first; why it waited
//     prefill        until its first token
//     decode         until its last token
//     deliver        detokenising, and the way back
//
// The stages' times are the replica's clock's. If that can be the router's own, it is taken for it
// (one host); else the stages are laid as late as what the router saw allows, within the request.
// A request that its replica told no stages of has the first span alone. Names of attributes:
// OpenTelemetry's gen_ai conventions, and flotilla.…. Units: nanoseconds since 1970. Pure.
#pragma once

#include <string>
#include <vector>

#include "router/base/trace_context.h"
#include "router/observe/finished_requests.h"

namespace flotilla {

// Spans of one request, with commas between them.
std::string OtlpSpans(const FinishedRequest& request, const TraceContext& trace);

// The body of one export. `instance`: names this router among others.
std::string OtlpBody(const std::vector<std::string>& spans, const std::string& instance);

}  // namespace flotilla
