# cuda_host: the CUDA worker's planning and ordering, plain C++ without CUDA's headers.
# cuda_device: the same on a real device; with FLOTILLA_CUDA only.
flotilla_library(cuda_host
  SOURCES cuda/graph/device_arena.cc cuda/graph/graph_runner.cc cuda/graph/profile_warmup.cc
          cuda/graph/result_ring.cc cuda/graph/step_metadata.cc
          cuda/plan/algo_cache.cc cuda/plan/device_kv.cc cuda/plan/graph_budget.cc cuda/plan/graph_mode.cc
          cuda/plan/graph_sizes.cc
  DEPS worker_core)

if(FLOTILLA_CUDA)
  find_package(CUDAToolkit REQUIRED)
  flotilla_library(cuda_device SOURCES cuda/graph/cuda_graph_api.cc DEPS cuda_host CUDA::cudart)
endif()
