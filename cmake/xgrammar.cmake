# xgrammar, which compiles grammars and says which tokens may come next: the C++ of its source archive as
# a static library, without Python, tvm-ffi, LTO and its own warnings.
#
# ./flotilla puts the archive into the cache (need_xgrammar); it is unpacked in the build folder, so a
# build without a network works with what is cached. XGRAMMAR_ARCHIVE may name another copy of it.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/xgrammar.lock lock)
list(GET lock 0 XGRAMMAR_REQUIREMENT)
string(REGEX MATCH "^xgrammar==([0-9.]+) --hash=sha256:([0-9a-f]+)$" matched "${XGRAMMAR_REQUIREMENT}")
if(NOT matched)
  message(FATAL_ERROR "cmake/xgrammar.lock: not 'xgrammar==VERSION --hash=sha256:…'")
endif()
set(XGRAMMAR_VERSION ${CMAKE_MATCH_1})
set(XGRAMMAR_SHA256 ${CMAKE_MATCH_2})

if(DEFINED ENV{XDG_CACHE_HOME})
  set(cache $ENV{XDG_CACHE_HOME}/flotilla)
else()
  set(cache $ENV{HOME}/.cache/flotilla)
endif()
set(XGRAMMAR_ARCHIVE ${cache}/xgrammar-${XGRAMMAR_VERSION}.tar.gz
  CACHE FILEPATH "xgrammar's source archive; ./flotilla fetches it")
# Unpacked once; again if the archive or the patch is another one.
set(patch ${CMAKE_CURRENT_LIST_DIR}/xgrammar.patch)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${patch} ${CMAKE_CURRENT_LIST_DIR}/xgrammar.lock)
file(SHA256 ${patch} patch_sha256)
set(unpacked ${CMAKE_BINARY_DIR}/xgrammar)
set(source ${unpacked}/xgrammar-${XGRAMMAR_VERSION})
set(stamp ${unpacked}/${XGRAMMAR_SHA256}-${patch_sha256})  # ./flotilla looks for it, too
if(NOT EXISTS ${stamp} AND NOT EXISTS ${XGRAMMAR_ARCHIVE})
  message(FATAL_ERROR "xgrammar's source is missing: ${XGRAMMAR_ARCHIVE}. './flotilla help' fetches it; "
    "without a network put PyPI's xgrammar-${XGRAMMAR_VERSION}.tar.gz there.")
endif()
if(NOT EXISTS ${stamp})
  file(SHA256 ${XGRAMMAR_ARCHIVE} sha256)
  if(NOT sha256 STREQUAL XGRAMMAR_SHA256)
    message(FATAL_ERROR "${XGRAMMAR_ARCHIVE} has another SHA-256 than cmake/xgrammar.lock says; not used")
  endif()
  file(REMOVE_RECURSE ${unpacked})
  file(ARCHIVE_EXTRACT INPUT ${XGRAMMAR_ARCHIVE} DESTINATION ${unpacked} PATTERNS
    */cpp/* */include/* */3rdparty/picojson/* */3rdparty/dlpack/include/* */LICENSE */NOTICE)
  execute_process(COMMAND patch --strip=1 --fuzz=0 --silent --input=${patch}
    WORKING_DIRECTORY ${source} COMMAND_ERROR_IS_FATAL ANY)
  file(TOUCH ${stamp})
endif()

file(GLOB_RECURSE sources ${source}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${sources})
set_target_properties(xgrammar PROPERTIES UNITY_BUILD OFF)
# Instead of our own warnings and sanitizers: it is not our code.
set_property(TARGET xgrammar PROPERTY COMPILE_OPTIONS
  -w -O2 -fno-omit-frame-pointer -fstack-protector-strong)
target_compile_definitions(xgrammar PUBLIC
  XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_include_directories(xgrammar SYSTEM PUBLIC ${source}/include ${source}/3rdparty/dlpack/include)
target_include_directories(xgrammar PRIVATE ${source}/3rdparty/picojson ${CMAKE_SOURCE_DIR})
target_link_libraries(xgrammar PUBLIC Threads::Threads)
