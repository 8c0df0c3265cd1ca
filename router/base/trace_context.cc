#include "router/base/trace_context.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "router/base/random.h"

namespace flotilla {
namespace {

constexpr size_t kTraceDigits = 32, kSpanDigits = 16;
// "00-" trace "-" span "-" flags
constexpr size_t kTraceparentBytes = 3 + kTraceDigits + 1 + kSpanDigits + 1 + 2;

bool IsLowerHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(std::string_view text) {
  return IsLowerHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

std::string NonZeroHex() {
  uint64_t value = 0;
  while (value == 0) value = RandomU64();
  return absl::StrFormat("%016x", value);
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kTraceparentBytes) return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  const bool longer = header.size() > kTraceparentBytes;
  // Version 00 has just these fields; later ones may have more behind another dash.
  if (!IsLowerHex(version) || version == "ff" || (longer && version == "00")) return std::nullopt;
  if (longer && header[kTraceparentBytes] != '-') return std::nullopt;
  const std::string_view trace = header.substr(3, kTraceDigits);
  const std::string_view span = header.substr(4 + kTraceDigits, kSpanDigits);
  const std::string_view flags = header.substr(kTraceparentBytes - 2, 2);
  const bool dashes = header[2] == '-' && header[3 + kTraceDigits] == '-' &&
                      header[4 + kTraceDigits + kSpanDigits] == '-';
  if (!dashes || !IsId(trace) || !IsId(span) || !IsLowerHex(flags)) return std::nullopt;
  const char last = flags[1];
  const int value = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceContext{std::string(trace), std::string(span), (value & 1) != 0};
}

std::string NewSpanId() { return NonZeroHex(); }

std::optional<TraceContext> SampleTrace(std::string_view header, double ratio) {
  if (std::optional<TraceContext> given = ParseTraceparent(header))
    return given->sampled ? given : std::nullopt;
  const double draw = static_cast<double>(RandomU64() >> 11) * 0x1p-53;
  if (draw >= ratio) return std::nullopt;
  return TraceContext{NonZeroHex() + NonZeroHex(), "", true};
}

}  // namespace flotilla
