// Threads: any. Errors: as said.
#pragma once

#include <string_view>

namespace flotilla {

// Writes all of it to a socket, waiting as long as that takes. False: the other side is gone.
bool WriteAll(int socket, std::string_view bytes);

}  // namespace flotilla
