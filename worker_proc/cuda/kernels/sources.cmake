# Our kernels, for every platform that compiles them (emulation, and nvcc where there is one).
set(cuda_kernel_sources act_mul.cu embedding.cu expert_gemm.cu gather.cu gemv.cu kernel_table.cu mma_attention.cu norm.cu
  packed_gemm.cu packed_rows.cu paged_attention.cu resident_gemm.cu rope_kv.cu route.cu rows.cu sample.cu sample_search.cu
  skinny_gemm.cu)
list(TRANSFORM cuda_kernel_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
