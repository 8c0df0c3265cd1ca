// How a log line holds what others wrote: bytes of clients, libraries and model files can neither
// break a line, nor reorder it on a screen, nor look like one of its fields.
//
// A field is made by Kv() and carried to the formatter as kFieldMark key=value; the mark never
// leaves the process. A value is bare if it can be mistaken for nothing else, else it is in quotes
// and escaped as in JSON, so that text and JSON lines hold the same characters.
// Threads: any (pure). Source: ours.
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

inline constexpr char kFieldMark = '\x1f';

enum class Quoted { kNo, kYes };

// Appends `bytes` as UTF-8 that is safe to print: control characters (C0, C1, DEL), line and
// paragraph separators and marks of direction become \uXXXX, bytes that are not UTF-8 U+FFFD.
// kYes: as the inside of a JSON string, so '"' and '\' get a backslash.
void AppendPrintable(std::string_view bytes, Quoted quoted, std::string* out);

// `"…"`, for JSON and for values of text lines that need quotes.
std::string QuotedText(std::string_view bytes);

// A payload, which may hold fields, as the rest of a text line or as the members
// `"message":"…","key":value,…` of a JSON object. Values that were given as numbers or truths stay
// so.
void AppendTextPayload(std::string_view payload, std::string* out);
void AppendJsonPayload(std::string_view payload, std::string* out);

bool IsJsonNumber(std::string_view text);
inline bool IsJsonBool(std::string_view text) { return text == "true" || text == "false"; }

}  // namespace flotilla
