// Test hook: FLOTILLA_SHM_POINT() stands between every two writes to shared memory. It is nothing
// in the library `shm`; in `shm_points` (tests only) it calls ShmPointHook, through which a test
// stops or kills a peer at each point in turn.
//
// Threads: the hook is called on the thread that reached the point; it is set before threads start.
#pragma once

#ifdef FLOTILLA_SHM_POINTS

namespace flotilla {
extern void (*g_shm_point_hook)();
}
#define FLOTILLA_SHM_POINT()                                          \
  do {                                                                \
    if (::flotilla::g_shm_point_hook) ::flotilla::g_shm_point_hook(); \
  } while (false)

#else
#define FLOTILLA_SHM_POINT() ((void)0)
#endif
