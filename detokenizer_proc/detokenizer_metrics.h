// The detokenizer's metric families. Threads: any.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace flotilla {

struct DetokenizerMetrics {
  explicit DetokenizerMetrics(prometheus::Registry* registry);

  prometheus::Gauge& queue_depth;
  prometheus::Gauge& streams;
  prometheus::Counter& tokens;
  prometheus::Counter& rejected_frames;
  prometheus::Counter& rejected_events;
  prometheus::Counter& hellos;
  prometheus::Histogram& batch_seconds;
};

}  // namespace flotilla
