#include "shm/points.h"

namespace flotilla {
void (*g_shm_point_hook)() = nullptr;
}
