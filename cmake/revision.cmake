# cmake -DROOT=… -DOUTPUT=… -P revision.cmake: writes the C++ source that knows the commit of the tree ROOT, and
# OUTPUT.d, by which the build writes it again when another commit is checked out or made. What is changed and not
# committed does not count. Environment: FLOTILLA_REVISION, instead, for a tree without .git; without both it is "unknown".
cmake_minimum_required(VERSION 3.25)
set(revision "$ENV{FLOTILLA_REVISION}")
set(moves ${CMAKE_CURRENT_LIST_FILE})  # one at least, or ninja has no list
# git_says(VARIABLE ARGUMENT...): a line of git's; empty where ROOT is no tree of git's own, or there is no git.
macro(git_says variable)
  execute_process(COMMAND git -C ${ROOT} ${ARGN} OUTPUT_VARIABLE ${variable} OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endmacro()
git_says(prefix rev-parse --show-cdup)
git_says(commit rev-parse --verify --short=12 HEAD)
if(commit AND NOT prefix)
  if(NOT revision)
    set(revision ${commit})
  endif()
  # HEAD changes with a checkout; its log also with a commit.
  foreach(name HEAD logs/HEAD)
    git_says(path rev-parse --git-path ${name})
    get_filename_component(path "${path}" ABSOLUTE BASE_DIR ${ROOT})
    if(EXISTS ${path})
      list(APPEND moves ${path})
    endif()
  endforeach()
endif()
if(NOT revision MATCHES "^[0-9A-Za-z._-]+$")
  set(revision unknown)
endif()
string(REPLACE " " "\\ " output "${OUTPUT}")
string(REPLACE " " "\\ " moves "${moves}")
string(REPLACE ";" " " moves "${moves}")
file(WRITE ${OUTPUT}.d "${output}: ${moves}\n")
file(WRITE ${OUTPUT} "// The commit of this build. Made by cmake/revision.cmake.
#include \"common/base/build_revision.h\"

namespace flotilla {
const char* BuildRevision() { return \"${revision}\"; }
}  // namespace flotilla
")
