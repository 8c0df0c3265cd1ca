#include "router/observe/otlp_spans.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "router/base/json_writer.h"

namespace flotilla {
namespace {

constexpr int kSpanKindInternal = 1, kSpanKindServer = 2;
constexpr int kStatusError = 2;

class Attributes {
 public:
  Attributes& Text(const char* key, const std::string& value) {
    if (!value.empty()) Add(key, StrCat("{\"stringValue\":", JsonString(value), "}"));
    return *this;
  }
  Attributes& Number(const char* key, int64_t value) {
    return Add(key, StrCat("{\"intValue\":\"", value, "\"}"));
  }
  std::string Take() { return StrCat("[", all_, "]"); }

 private:
  Attributes& Add(const char* key, const std::string& value) {
    AppendComma(&all_);
    StrAppend(&all_, "{\"key\":\"", key, "\",\"value\":", value, "}");
    return *this;
  }
  std::string all_;
};

struct Span {
  std::string name;
  std::string span_id = NewSpanId();
  std::string parent_id = {};
  int kind = kSpanKindInternal;
  int64_t begin_ns = 0, end_ns = 0;  // since 1970
  std::string attributes = "[]";
  bool failed = false;
};

std::string SpanJson(const Span& span, const std::string& trace_id) {
  std::string out = StrCat("{\"traceId\":\"", trace_id, "\",\"spanId\":\"", span.span_id, "\"");
  if (!span.parent_id.empty()) StrAppend(&out, ",\"parentSpanId\":\"", span.parent_id, "\"");
  StrAppend(&out, ",\"name\":\"", span.name, "\",\"kind\":", span.kind, ",\"startTimeUnixNano\":\"",
            span.begin_ns, "\",\"endTimeUnixNano\":\"", span.end_ns,
            "\",\"attributes\":", span.attributes);
  if (span.failed) StrAppend(&out, ",\"status\":{\"code\":", kStatusError, "}");
  return out + "}";
}

bool IsFailure(const std::string& outcome) { return outcome == "error" || outcome == "deadline"; }

// What is added to the replica's clock to get the router's. Nothing, if that can be: then they are
// of one host. Else as much as can be: nothing is seen here before it has happened there.
int64_t ClockOffset(const FinishedRequest& request) {
  const v1::Timing& timing = request.timing;
  const int64_t least = request.arrival_ns - timing.arrival_ns();
  const int64_t most = std::min(request.end_ns - timing.finished_ns(),
                                request.first_token_ns - timing.first_token_ns());
  return least <= 0 && 0 <= most ? 0 : most;
}

// The stages behind `whole`, on its clock.
std::vector<Span> Stages(const FinishedRequest& request, const Span& whole) {
  const v1::Timing& timing = request.timing;
  if (timing.finished_ns() == 0 || request.first_token_ns == 0) return {};
  const int64_t shift_ns = whole.begin_ns - request.arrival_ns + ClockOffset(request);
  const auto at = [&](int64_t engine_ns) {
    return std::clamp(engine_ns + shift_ns, whole.begin_ns, whole.end_ns);
  };
  const std::string wait = Attributes().Text("flotilla.wait_reason", timing.wait_reason()).Take();
  const int64_t arrival = at(timing.arrival_ns()), scheduled = at(timing.first_scheduled_ns());
  const int64_t first = at(timing.first_token_ns()), last = at(timing.finished_ns());
  std::vector<Span> stages = {
      {.name = "router", .begin_ns = whole.begin_ns, .end_ns = arrival},
      {.name = "queue", .begin_ns = arrival, .end_ns = scheduled, .attributes = wait},
      {.name = "prefill", .begin_ns = scheduled, .end_ns = first},
      {.name = "decode", .begin_ns = first, .end_ns = last},
      {.name = "deliver", .begin_ns = last, .end_ns = whole.end_ns}};
  for (Span& stage : stages) stage.parent_id = whole.span_id;
  return stages;
}

}  // namespace

std::string OtlpSpans(const FinishedRequest& request, const TraceContext& trace) {
  constexpr int64_t kNsPerMs = 1'000'000;
  Span whole;
  whole.name = "flotilla.request";
  whole.parent_id = trace.parent_span_id;
  whole.kind = kSpanKindServer;
  whole.begin_ns = request.arrival_unix_ms * kNsPerMs;
  whole.end_ns = whole.begin_ns + request.end_ns - request.arrival_ns;
  whole.failed = IsFailure(request.outcome);
  whole.attributes = Attributes()
                         .Text("flotilla.request_id", request.request_id)
                         .Text("flotilla.tenant", request.tenant)
                         .Text("flotilla.replica", request.replica)
                         .Text("flotilla.outcome", request.outcome)
                         .Number("flotilla.choice", static_cast<int64_t>(request.choice))
                         .Text("gen_ai.request.model", request.model)
                         .Number("gen_ai.usage.input_tokens", request.usage.prompt_tokens())
                         .Number("gen_ai.usage.output_tokens", request.usage.completion_tokens())
                         .Number("flotilla.cached_tokens", request.usage.cached_tokens())
                         .Take();
  std::string out = SpanJson(whole, trace.trace_id);
  for (const Span& stage : Stages(request, whole))
    StrAppend(&out, ",", SpanJson(stage, trace.trace_id));
  return out;
}

std::string OtlpBody(const std::vector<std::string>& spans, const std::string& instance) {
  const std::string resource = Attributes()
                                   .Text("service.name", "flotilla-router")
                                   .Text("service.version", FLOTILLA_VERSION)
                                   .Text("service.instance.id", instance)
                                   .Take();
  return StrCat("{\"resourceSpans\":[{\"resource\":{\"attributes\":", resource,
                "},\"scopeSpans\":[{\"scope\":{\"name\":\"flotilla\"},\"spans\":[",
                absl::StrJoin(spans, ","), "]}]}]}");
}

}  // namespace flotilla
