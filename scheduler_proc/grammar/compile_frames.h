// What the scheduler and the compile sandbox (flotilla-grammar) say to each other. sandbox_io.h
// carries it.
//
// On the control socket (SOCK_SEQPACKET) each message is one byte and one file descriptor:
// kVocabulary with a memfd, once, or kCompile with a stream socket. On that socket the scheduler
// writes a CompileRequest and ends its side; the sandbox answers with a CompileReply and closes. A
// socket that is closed without a whole reply: the process that compiled was ended by one of its
// limits.
//
// Threads: pure functions. Errors: InvalidArgument for a frame that is not one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler_proc/grammar/xgrammar_backend.h"

namespace flotilla {

struct CompileRequest {
  GrammarSpec spec;
  uint32_t time_ms = 0;         // wall time
  uint64_t memory_bytes = 0;    // of address space, beside what the process has; 0: no limit
  uint64_t compiled_bytes = 0;  // of the reply
};

struct CompileReply {
  Status status;
  std::string compiled;  // with an OK status
};

std::string BuildVocabulary(const VocabularyTokens& tokens);
StatusOr<VocabularyTokens> ParseVocabulary(std::string_view frame);
std::string BuildCompileRequest(const CompileRequest& request);
StatusOr<CompileRequest> ParseCompileRequest(std::string_view frame);
std::string BuildCompileReply(const CompileReply& reply);
StatusOr<CompileReply> ParseCompileReply(std::string_view frame);

}  // namespace flotilla
