// HTTP/2 frames by hand, as a server of gRPC would send them, and what is in those of a client.
//
// Headers are literals without an index or Huffman's code, of at most 126 bytes each. Source: RFC
// 9113 (frames), RFC 7541 (headers). Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flotilla::testing {

enum FrameType : uint8_t { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kGoaway = 7 };
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

inline std::string BigEndian(uint32_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return out;
}

inline std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string out = BigEndian(static_cast<uint32_t>(payload.size()), 3);
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  return out.append(BigEndian(stream, 4)).append(payload);
}

using HeaderList = std::vector<std::pair<std::string, std::string>>;

inline std::string HeadersFrame(const HeaderList& headers, uint8_t flags = 0) {
  std::string block;
  for (const auto& [name, value] : headers) {
    block.push_back(0);
    for (const std::string& text : {name, value}) {
      block.push_back(static_cast<char>(text.size()));
      block.append(text);
    }
  }
  return Frame(kHeaders, flags | kEndHeaders, 1, block);
}

inline std::string GrpcMessage(std::string_view message, char compressed = 0) {
  return std::string(1, compressed)
      .append(BigEndian(static_cast<uint32_t>(message.size()), 4))
      .append(message);
}

// What a client that has begun one call sent of it: its messages' bytes.
inline std::string DataOf(std::string_view bytes) {
  static constexpr size_t kPreface = 24, kFrameHead = 9;
  std::string data;
  bytes.remove_prefix(kPreface);
  while (bytes.size() >= kFrameHead) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    const size_t size = size_t{at(0)} << 16 | size_t{at(1)} << 8 | at(2);
    if (at(3) == kData) data.append(bytes.substr(kFrameHead, size));
    bytes.remove_prefix(kFrameHead + size);
  }
  return data;
}

}  // namespace flotilla::testing
