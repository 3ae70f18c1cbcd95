#include <algorithm>
#include <cuda/atomic>

#include "runtime/cuda/pack.cuh"
#include "runtime/cuda/peer_kernels.h"

namespace meshwright::runtime::cuda {
namespace {

constexpr int kThreads = 512;
// Loads in flight of a thread: 8 blocks with these fill the link of an H200 (some 300 GB/s).
constexpr int kUnroll = 8;

using Counter = ::cuda::atomic_ref<uint32_t, ::cuda::thread_scope_system>;

/// Tells the partner's block that this one has come, and waits for it.
__device__ void Rendezvous(uint32_t* own, uint32_t* theirs, uint32_t turn) {
  if (threadIdx.x != 0) return;
  Counter(theirs[blockIdx.x]).store(turn, ::cuda::memory_order_release);
  const Counter came(own[blockIdx.x]);
  while (static_cast<int32_t>(came.load(::cuda::memory_order_acquire) - turn) < 0) {
  }
}
__device__ void Meet(const PeerTurn& t) {
  Rendezvous(t.own_met, t.their_met, t.turn);
  __syncthreads();
}
/// The barrier and the release of thread 0 make all writes of the block visible to the partner.
__device__ void Part(const PeerTurn& t) {
  __syncthreads();
  Rendezvous(t.own_parted, t.their_parted, t.turn);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    PeerSumKernel(const T* own, const T* theirs, T* out, T* their_out, int64_t packs, PeerTurn t) {
  constexpr int N = kWide<T>;
  using Wide = Pack<T, N>;
  Meet(t);
  const int64_t wide = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += wide * kUnroll) {
    Wide a[kUnroll], b[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * wide;
      if (at < packs) b[u] = Wide::Load(theirs + at * N), a[u] = Wide::Load(own + at * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * wide;
      if (at >= packs) continue;
      float x[N], y[N];
      a[u].Unpack(x);
      b[u].Unpack(y);
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] += y[k];
      const Wide sum = Wide::From(x);
      sum.Store(out + at * N);
      if (their_out != nullptr) sum.Store(their_out + at * N);
    }
  }
  Part(t);
}

/// A thread sums the pack that the same thread of the partner has written.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    PeerSmallSumKernel(const T* own, const T* given, T* out, const T* own_landing, T* their_landing,
                       int64_t packs, PeerTurn t) {
  constexpr int N = kWide<T>;
  using Wide = Pack<T, N>;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  const bool has = at < packs * N;
  if (has) Wide::Load(given + at).Store(their_landing + at);
  Part(t);
  __syncthreads();
  if (!has) return;
  float x[N], y[N];
  Wide::Load(own + at).Unpack(x);
  Wide::Load(own_landing + at).Unpack(y);
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] += y[k];
  Wide::From(x).Store(out + at);
}

/// To `to` and, unless that is null, `also`, by all blocks.
__device__ void CopyPacks(const uint4* from, uint4* to, uint4* also, int64_t packs) {
  const int64_t wide = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += wide * kUnroll) {
    uint4 a[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * wide < packs) a[u] = from[i + u * wide];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * wide;
      if (at >= packs) continue;
      to[at] = a[u];
      if (also != nullptr) also[at] = a[u];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    CopyAndTellKernel(const uint4* from, uint4* to, int64_t packs, PeerNotice notice) {
  CopyPacks(from, to, nullptr, packs);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    const Counter arrived(*notice.arrived);
    if (arrived.fetch_add(1, ::cuda::memory_order_acq_rel) + 1 != gridDim.x) return;
    arrived.store(0, ::cuda::memory_order_relaxed);
  }
  Counter(*notice.told).store(notice.value, ::cuda::memory_order_release);
}

__global__ void __launch_bounds__(kThreads)
    PeerPushKernel(const uint4* from, uint4* their_out, uint4* out, int64_t packs, PeerTurn t) {
  Meet(t);
  CopyPacks(from, their_out, out, packs);
  Part(t);
}

/// The same on both ranks.
unsigned Blocks(int64_t packs, int most) {
  const int64_t wanted = (packs + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most));
}

template <typename T>
Status Sum(const std::byte* own, const std::byte* theirs, std::byte* out, std::byte* their_out,
           int64_t count, const PeerTurn& turn, cudaStream_t stream) {
  const int64_t packs = count / kWide<T>;
  PeerSumKernel<T><<<Blocks(packs, turn.blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const T*>(own), reinterpret_cast<const T*>(theirs),
      reinterpret_cast<T*>(out), reinterpret_cast<T*>(their_out), packs, turn);
  MW_CUDA_CALL(cudaGetLastError());
  return Status::Ok();
}

template <typename T>
Status SmallSum(const std::byte* own, const std::byte* given, std::byte* out,
                const Landings& landings, int64_t count, const PeerTurn& turn,
                cudaStream_t stream) {
  const int64_t packs = count / kWide<T>;
  const int64_t blocks = (packs + kThreads - 1) / kThreads;
  MW_CHECK(blocks <= kMostPeerBlocks);
  PeerSmallSumKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const T*>(own), reinterpret_cast<const T*>(given), reinterpret_cast<T*>(out),
      reinterpret_cast<const T*>(landings.own), reinterpret_cast<T*>(landings.theirs), packs, turn);
  MW_CUDA_CALL(cudaGetLastError());
  return Status::Ok();
}

}  // namespace

Status PeerSum(const std::byte* own, const std::byte* theirs, std::byte* out, std::byte* their_out,
               int64_t count, planner::DType dtype, const PeerTurn& turn, cudaStream_t stream) {
  if (dtype == planner::DType::kF32) {
    return Sum<float>(own, theirs, out, their_out, count, turn, stream);
  }
  return Sum<__nv_bfloat16>(own, theirs, out, their_out, count, turn, stream);
}

Status PeerSmallSum(const std::byte* own, const std::byte* given, std::byte* out,
                    const Landings& landings, int64_t count, planner::DType dtype,
                    const PeerTurn& turn, cudaStream_t stream) {
  if (dtype == planner::DType::kF32) {
    return SmallSum<float>(own, given, out, landings, count, turn, stream);
  }
  return SmallSum<__nv_bfloat16>(own, given, out, landings, count, turn, stream);
}

Status CopyAndTell(const std::byte* from, std::byte* to, int64_t bytes, const PeerNotice& notice,
                   int blocks, cudaStream_t stream) {
  const int64_t packs = bytes / static_cast<int64_t>(sizeof(uint4));
  CopyAndTellKernel<<<Blocks(packs, blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), packs, notice);
  MW_CUDA_CALL(cudaGetLastError());
  return Status::Ok();
}

Status PeerPush(const std::byte* from, std::byte* their_out, std::byte* out, int64_t bytes,
                const PeerTurn& turn, cudaStream_t stream) {
  const int64_t packs = bytes / static_cast<int64_t>(sizeof(uint4));
  PeerPushKernel<<<Blocks(packs, turn.blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(their_out),
      reinterpret_cast<uint4*>(out), packs, turn);
  MW_CUDA_CALL(cudaGetLastError());
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
