# cmake "-DFILES=a;b" -DOUTPUT=… -P embed.cmake: writes the C++ source with the bytes of the operator's
# page, as router/handlers/operator_page.h declares them.
set(arrays "")
set(rows "")
string(REPEAT "0x..," 20 line)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER "kUi_${name}" array)
  file(READ ${file} bytes HEX)
  file(SHA256 ${file} sha256)
  string(SUBSTRING ${sha256} 0 16 etag)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char ${array}[] = {\n${bytes}};\n")
  string(APPEND rows "      {\"${name}\", \"\\\"${etag}\\\"\",\n       {reinterpret_cast<const char*>(${array}), sizeof(${array})}},\n")
endforeach()
file(WRITE ${OUTPUT} "// The files of router/ui as bytes. Made by cmake/embed.cmake.
#include \"router/handlers/operator_page.h\"

namespace flotilla {
namespace {

${arrays}
}  // namespace

std::span<const UiFile> UiFiles() {
  static const UiFile files[] = {
${rows}  };
  return files;
}

}  // namespace flotilla
")
