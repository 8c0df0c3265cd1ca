// What a chat template may use up before it is stopped. Passing one of these is an error that names
// it (kResourceExhausted), never a crash: templates come with models, from anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla {

struct ChatTemplateLimits {
  // Of the source. Python itself refuses more than 200 parentheses in each other, so do we: each
  // operator, call, filter, subscript and block around another counts as one.
  size_t max_source_bytes = 1 << 20;
  int max_nesting = 200;

  // Of one rendering. A step is an expression, statement or loop turn evaluated, or about 256 bytes
  // that a filter walked over; the templates of today's models take some thousands a message.
  int64_t max_steps = 5'000'000;
  size_t max_output_bytes = 16 << 20;
  // All strings and containers made, whether still in use or not, and the inputs.
  size_t max_value_bytes = 256 << 20;
  // Evaluations within each other: what ends a macro that calls itself. Each takes less than 1 KiB
  // of the thread's stack (8 KiB with sanitizers).
  int max_depth = 600;
  int max_value_depth = 100;    // lists and dicts in each other, of inputs too
  int64_t max_range = 100'000;  // numbers in a range(), as in jinja2's sandbox
};

}  // namespace flotilla
