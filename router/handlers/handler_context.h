// What the handlers of requests share: where they run, and whom they ask.
//
// Threads: the io thread, but for what WorkOffThread says.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "router/admission/answer_memory.h"
#include "router/admission/tenant_limits.h"
#include "router/api/api_forms.h"
#include "router/dispatch/dispatcher.h"
#include "router/fleet/call_tracker.h"
#include "router/http/http_types.h"

namespace flotilla {

// A larger body is parsed off the io thread.
inline constexpr size_t kParseOffThreadBytes = 64 << 10;

struct HandlerContext {
  boost::asio::io_context* io = nullptr;
  boost::asio::thread_pool* pool = nullptr;
  boost::asio::thread_pool* large_pool = nullptr;  // of low priority: these wait for each other
  CallTracker* calls = nullptr;
  Dispatcher* dispatcher = nullptr;
  RouterMetrics* metrics = nullptr;
  AnswerMemory* answers = nullptr;
  ParserChoice parsers;
  int64_t sse_keepalive_ms = 0;  // 0: none
  Access* access = nullptr;      // null: everybody may call
  Caller caller;                 // of the request that a handler is made for
};

// Runs work(body) on the pool for bodies of this size, and then(result) on the io thread: neither
// once the client has left, since bodies may come faster than they are worked on. The body keeps
// its room meanwhile. `then` is destroyed on the io thread, `work` on either.
template <typename Work, typename Then>
void WorkOffThread(const HandlerContext& context, HttpRequest request, Work work, Then then) {
  context.calls->Add();
  auto* const pool = request.body.size() > kParseOffThreadBytes ? context.large_pool : context.pool;
  boost::asio::post(*pool, [io = context.io, calls = context.calls, request = std::move(request),
                            work = std::move(work), then = std::move(then)]() mutable {
    std::optional<std::invoke_result_t<Work&, const std::string&>> result;
    if (!request.body_lease->abandoned) result.emplace(work(request.body));
    boost::asio::post(*io, [lease = std::move(request.body_lease), then = std::move(then),
                            result = std::move(result)]() mutable {
      if (result.has_value()) then(*std::move(result));
    });
    calls->Remove();
  });
}

}  // namespace flotilla
