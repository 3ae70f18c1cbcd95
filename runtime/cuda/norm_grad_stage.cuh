// How the norms' backward brings rows into shared memory.
#pragma once

#include "runtime/cuda/norm_arguments.cuh"

namespace meshwright::runtime::cuda {

template <typename T>
struct GradArguments {
  NormShape shape;
  const T* dn;
  const T* r1;
  const T* gamma;
  const T* dr_in;  ///< nullptr: none
  T* dr_out;       ///< may lie exactly over an input
  float* partial;  ///< a block: [h] of gamma [, then h of beta]
};

/// Rows that a group of threads has in shared memory or on the way there.
constexpr int GradStages(int threads, int packs) {
  return threads * packs >= 2048 ? 2 : 3;
}
constexpr int kGradInputs = 3;  ///< dn, r1, dr_in
constexpr int GradStageBytes(int threads, int packs) {
  return kGradInputs * threads * packs * 16;
}

/// 16 bytes to shared memory without passing registers.
__device__ inline void CopyAsync(uint4* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// All but the latest kPending groups of this thread have arrived.
template <int kPending>
__device__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// The packs of a row that a thread owns; it alone writes and reads them, so that its own wait is
/// enough.
template <typename T, int N, int kThreads, int kPacks>
struct GradStage {
  uint4* own;  ///< of this thread in the stage

  __device__ uint4* At(int input, int v) const { return own + (input * kPacks + v) * kThreads; }
  __device__ Pack<T, N> Load(int input, int v) const {
    return Pack<T, N>::Load(reinterpret_cast<const T*>(At(input, v)));
  }
  __device__ void Fetch(const GradArguments<T>& a, int64_t row, int32_t packs,
                        int32_t thread) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      const int32_t pack = thread + v * kThreads;
      if (pack >= packs) continue;
      const int64_t at = row * a.shape.h + int64_t{pack} * N;
      CopyAsync(At(0, v), a.dn + at);
      CopyAsync(At(1, v), a.r1 + at);
      if (a.dr_in != nullptr) CopyAsync(At(2, v), a.dr_in + at);
    }
  }
};

}  // namespace meshwright::runtime::cuda
