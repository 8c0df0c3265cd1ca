# cuda_host: the CUDA worker's planning and ordering, plain C++ without CUDA's headers.
flotilla_library(cuda_host
  SOURCES cuda/graph/device_arena.cc cuda/graph/graph_runner.cc
          cuda/graph/result_ring.cc cuda/graph/step_metadata.cc
          cuda/plan/algo_cache.cc cuda/plan/exchange_table.cc cuda/plan/graph_budget.cc cuda/plan/graph_mode.cc
          cuda/plan/graph_sizes.cc
  DEPS worker_core)
