// One tool call as models write it, from pieces of its text; JsonCallScanner: {"name": "f",
// "arguments": {…}}.
//
// The arguments are passed on as they come, in the model's own bytes; what they say is the
// client's to judge. "parameters" is another name for "arguments"; other keys are skipped; a call
// without arguments has {}. An object that turns out to be no call (no name, arguments that are no
// object, no JSON) fails, and its text is there to be told as text.
// Threads: one at a time. Errors: kFailed. Source: ours; the forms are those of Hermes 2 Pro,
// Qwen 2.5 and Llama 3.1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// Where a JSON value ends, told from its brackets and strings alone.
class JsonEnd {
 public:
  // The next byte of a value that begins with a bracket or a quote. True: it was the last one, and
  // another value may follow.
  bool Take(char c);

 private:
  bool in_string_ = false;
  bool escaped_ = false;
  int depth_ = 0;  // of brackets
};

class CallScanner {
 public:
  enum class State { kOpen, kDone, kFailed };

  virtual ~CallScanner() = default;

  // Takes what of `text` belongs to the call, which comes first but for white space, and returns
  // how many bytes that was. The byte that it fails at is not taken: it may begin a tag. Appends to
  // *arguments once the call is known to be one (begun()).
  size_t Push(std::string_view text, std::string* arguments);

  // The output has ended: what is still told of the arguments.
  virtual void Finish(std::string* /*arguments*/) {}

  State state() const { return state_; }
  bool begun() const { return begun_; }  // name() is known, and it is a call
  const std::string& name() const { return name_; }
  // All that was taken; kept until begun().
  const std::string& raw() const { return raw_; }

 protected:
  // The next byte; not after kDone. If it fails here, the byte is not taken.
  virtual void Take(char c, std::string* arguments) = 0;
  void Begin();
  void Fail() { state_ = State::kFailed; }
  void Done() { state_ = State::kDone; }
  std::string name_;

 private:
  State state_ = State::kOpen;
  std::string raw_;
  bool begun_ = false;
};

class JsonCallScanner final : public CallScanner {
 public:
  // `names`: what may be called; null: anything. Must outlive the scanner.
  explicit JsonCallScanner(const std::vector<std::string>* names) : names_(names) {}

 private:
  enum class At { kBegin, kFirstKey, kKey, kInKey, kColon, kValue, kInValue, kComma };

  void Take(char c, std::string* arguments) override;
  void TakeStructure(char c);
  void TakeValue(char c, std::string* arguments);
  void BeginValue(char c);
  void EndValue(std::string* arguments);
  void EndObject(std::string* arguments);

  const std::vector<std::string>* const names_;
  At at_ = At::kBegin;
  std::string key_;        // as JSON, with its quotes
  std::string value_;      // the value so far, but for arguments that were passed on
  std::string arguments_;  // that came before the name
  JsonEnd end_;            // of the key or the value
  bool scalar_ = false;    // the value is a number or a word
  bool is_arguments_ = false;
  bool has_arguments_ = false;
};

}  // namespace flotilla
