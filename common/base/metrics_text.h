// The text exposition format 0.0.4 of a registry's metrics, byte for byte as prometheus-cpp's own
// TextSerializer writes it, in a quarter of the time: that one sends each character through an
// std::ostream, and a page has 100,000.
//
// Threads: any. Errors: none. Source:
// https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace flotilla {

std::string MetricsText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace flotilla
