// The one translation unit with Boost.JSON's definitions (it is header-only here).
#include <boost/json/src.hpp>
