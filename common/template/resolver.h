// Gives every name of a syntax tree its place, by jinja2's rules of scope.
//
// Loops, macros and the bodies of set, filter, with and call blocks are scopes; `if` is none. What
// a scope assigns to is its own, and starts as a copy of the outer variable of that name. Whether a
// name means a variable of the template or one of the rendering's inputs is decided here, once,
// from all assignments in the scope - also those further down. Filters and tests are looked up too.
//
// Threads: one. Errors: kInvalidArgument for an unknown filter or test where jinja2 refuses to
// compile the template (not within an `if`: there it is an error when reached), and for a macro
// whose parameter "caller" has no default. Source: jinja2 3.1's idtracking.py and compiler.py.
#pragma once

#include "common/base/status.h"
#include "common/template/ast.h"

namespace flotilla::jinja {

// The template's outermost function: a macro without parameters.
Status ResolveNames(MacroDef* root);

}  // namespace flotilla::jinja
