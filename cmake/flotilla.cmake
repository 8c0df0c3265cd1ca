# Compiler flags, third-party packages and the three helpers every folder's CMakeLists.txt uses.
# Bit-identical results are a feature: no contraction of a*b+c behind our back. Kernels ask for FMA.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Werror;-fno-omit-frame-pointer;\
-fstack-protector-strong;-ffp-contract=off>")
if(FLOTILLA_SANITIZE)
  add_compile_options(-fsanitize=${FLOTILLA_SANITIZE} -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${FLOTILLA_SANITIZE})
  if(FLOTILLA_SANITIZE MATCHES "thread")
    # GCC warns that TSan does not model atomic_thread_fence; shm/ uses none.
    add_compile_options(-Wno-tsan)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12's sanitizer instrumentation makes these two fire inside libstdc++ and Boost headers.
    add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow)
  endif()
endif()
if(NOT FLOTILLA_SANITIZE AND NOT FLOTILLA_FUZZ)
  # A program keeps what it calls of a library, not the files where that stands, and needs no shared library for what it
  # does not call.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections;-fdata-sections>")
  add_link_options(LINKER:--gc-sections LINKER:--as-needed)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # All presets but dev read a folder's files as a few large ones: a third of the time. What GCC says of a
  # header's class with members of an anonymous namespace, it says of a file that is included too.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>")
endif()
if(FLOTILLA_FUZZ)
  # Counters for the fuzzer and, so that coverage.sh needs no build of its own, for llvm-cov; nothing
  # is written unless LLVM_PROFILE_FILE says where.
  add_compile_options(-fsanitize=fuzzer-no-link,float-cast-overflow
    -fprofile-instr-generate=/dev/null -fcoverage-mapping
    # Clang alone has these: a field that is left out has its default on purpose, and libstdc++ 12's
    # own stable_sort uses what C++17 deprecated.
    -Wno-missing-designated-field-initializers -Wno-deprecated-declarations)
  add_link_options(-fprofile-instr-generate)
endif()

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
set(Boost_NO_WARN_NEW_VERSIONS ON)  # 1.81 is newer than what CMake 3.25 knows
find_package(Boost 1.81 EXACT REQUIRED COMPONENTS context)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# flotilla_library(name SOURCES ... DEPS ...): a static library that sees the repository root.
function(flotilla_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# flotilla_binary(name SOURCES ... DEPS ...): an executable in build/<preset>/bin.
function(flotilla_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} build_revision)
endfunction()

# The product: what serves (target serving, all that `./flotilla serve` builds), and what `flotilla`'s other commands
# start (target programs), installed, packed, and what tests with a whole product need.
set(FLOTILLA_SERVING flotilla flotilla-router flotilla-scheduler flotilla-worker flotilla-rank-proxy
  flotilla-detokenizer flotilla-grammar)
set(FLOTILLA_PROGRAMS ${FLOTILLA_SERVING} flotilla-flight flotilla-simulate flotilla-fleet flotilla-worker-bench
  flotilla-quality flotilla-offline flotilla-served)

# tests_<label>: builds what the tests of a label need, so that a sanitizer's tree builds no more.
function(flotilla_label_targets labels)
  foreach(label ${labels})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    if(ARGN)
      add_dependencies(tests_${label} ${ARGN})
    endif()
  endforeach()
endfunction()

# How the vector kernels are compiled, and what tests make of them. GCC 12 takes the deliberately undefined
# operand of its own AVX-512 intrinsics for a mistake.
set(FLOTILLA_AVX2_OPTIONS -O3 -mavx2 -mfma -mf16c)
set(FLOTILLA_AVX512_OPTIONS -O3 -mavx512f -mfma -Wno-uninitialized -Wno-maybe-uninitialized)
set(FLOTILLA_VNNI_OPTIONS ${FLOTILLA_AVX512_OPTIONS} -mavx512bw -mavx512vl -mavx512vnni)

# flotilla_fewer_checks(target): code whose templates are mostly Asio's, gRPC's or GoogleTest's compiles in two thirds
# of the time without UBSan's checks of each pointer. ASan's stay, and the fuzz targets compile router's and scheduler's
# parsers with all.
option(FLOTILLA_FEWER_CHECKS "UBSan looks at fewer things where that costs the compiler most (CI)" OFF)
function(flotilla_fewer_checks target)
  if(FLOTILLA_FEWER_CHECKS AND FLOTILLA_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,object-size,vptr)
  endif()
endfunction()

# How a test is compiled; tests/CMakeLists.txt has found GoogleTest.
function(flotilla_test_options name)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  # Tests of one program have helpers and names in use of their own.
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE -pthread)  # as gRPC wants it: compiled headers must not differ
  flotilla_fewer_checks(${name})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 sees all of them in its own std::string, once the header is a compiled one.
    target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict
      -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1 -g0)  # what is tested is in the libraries; two thirds of the time
  endif()
endfunction()

# flotilla_test_headers(name DEPS ... [HEADERS ...]): headers that the tests below this folder begin with, GoogleTest's
# among them, are compiled once; half of their time. DEPS: from which the headers and their definitions come.
function(flotilla_test_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Made by cmake/flotilla.cmake: a target has a source.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${source})
  flotilla_test_options(${name} ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> ${ARG_HEADERS})
  # Not by ccache: its preprocessor reads the compiled headers that this makes anew, so that what it looks up is what they
  # were, and another checkout's, which were the same before, would be taken.
  set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER "")
  set(FLOTILLA_TEST_HEADERS ${name} PARENT_SCOPE)
endfunction()

# flotilla_test(name SOURCES ... DEPS ... LABELS ... [TIMEOUT s] [ENV k=v ...] [PROGRAMS ...]
# [SERIAL] [ONE_THREAD]): one GoogleTest program, run by ctest as one test. Tests run in parallel, so none
# may use a fixed port. PROGRAMS: binaries that it starts. ONE_THREAD: it has one thread and takes long, so
# ThreadSanitizer has nothing to add.
function(flotilla_test name)
  cmake_parse_arguments(ARG "SERIAL;ONE_THREAD" "TIMEOUT" "SOURCES;DEPS;LABELS;ENV;PROGRAMS" ${ARGN})
  if(ARG_ONE_THREAD AND FLOTILLA_SANITIZE MATCHES "thread")
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  flotilla_test_options(${name} ${ARG_DEPS})
  target_precompile_headers(${name} REUSE_FROM ${FLOTILLA_TEST_HEADERS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_link_options(${name} PRIVATE -fuse-ld=gold)  # half of the time
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(FLOTILLA_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    RUN_SERIAL ${ARG_SERIAL} ENVIRONMENT "${ARG_ENV};FLOTILLA_BIN_DIR=${CMAKE_BINARY_DIR}/bin")
  flotilla_label_targets("${ARG_LABELS}" ${name} ${ARG_PROGRAMS})
endfunction()

# flotilla_script_test(name COMMAND ... LABELS ... [TIMEOUT s] [ENV k=v ...] [PROGRAMS ...]
# [SERIAL] [RELEASE_ONLY] [ONE_THREAD]): a script as a test, run in the repository's root. A COMMAND that begins
# with "python" runs in the tests' venv. RELEASE_ONLY: it measures, or runs none of our compiled code,
# so a sanitizer's build has nothing to add. ONE_THREAD: its programs have one thread, so there is nothing
# for ThreadSanitizer.
function(flotilla_script_test name)
  cmake_parse_arguments(ARG "SERIAL;RELEASE_ONLY;ONE_THREAD" "TIMEOUT" "COMMAND;LABELS;ENV;PROGRAMS" ${ARGN})
  if(ARG_RELEASE_ONLY AND FLOTILLA_SANITIZE)
    return()
  endif()
  if(ARG_ONE_THREAD AND FLOTILLA_SANITIZE MATCHES "thread")
    return()
  endif()
  list(GET ARG_COMMAND 0 program)
  if(program STREQUAL "python")
    list(REMOVE_AT ARG_COMMAND 0)
    list(PREPEND ARG_COMMAND ${CMAKE_SOURCE_DIR}/.cache/venv/bin/python)
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(FLOTILLA_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    RUN_SERIAL ${ARG_SERIAL} ENVIRONMENT
    "${ARG_ENV};FLOTILLA_BIN_DIR=${CMAKE_BINARY_DIR}/bin;FLOTILLA_SANITIZE=${FLOTILLA_SANITIZE}")
  flotilla_label_targets("${ARG_LABELS}" ${ARG_PROGRAMS})
endfunction()
