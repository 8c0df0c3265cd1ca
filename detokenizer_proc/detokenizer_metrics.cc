#include "detokenizer_proc/detokenizer_metrics.h"

#include "common/base/metrics.h"

namespace flotilla {

DetokenizerMetrics::DetokenizerMetrics(prometheus::Registry* registry)
    : queue_depth(AddGauge(registry, {"flotilla_detokenizer_queue_depth",
                                      "Frames that have arrived and wait for their turn."})),
      streams(AddGauge(registry, {"flotilla_detokenizer_streams", "Streams that are open."})),
      tokens(AddCounter(registry, {"flotilla_detokenizer_tokens_total",
                                   "Tokens turned into text, replayed histories included."})),
      rejected_frames(AddCounter(registry, {"flotilla_detokenizer_rejected_frames_total",
                                            "Frames dropped because they could not be parsed."})),
      rejected_events(
          AddCounter(registry, {"flotilla_detokenizer_rejected_events_total",
                                "Events of a stream dropped because they broke a limit."})),
      hellos(
          AddCounter(registry, {"flotilla_detokenizer_hellos_total",
                                "Hellos sent: one for each connection and each loss of tokens."})),
      batch_seconds(AddHistogram(registry,
                                 {"flotilla_detokenizer_batch_seconds",
                                  "Time from taking a frame to having sent its answer."},
                                 {.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005,
                                  .01, .025, .05, .1, .25, 1})) {}

}  // namespace flotilla
