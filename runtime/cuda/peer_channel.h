// Traffic of ranks of one host straight between their mapped arenas, around a ring: by copy
// engines, which leave the SMs to the products beside them (on 2 x H200 389 GB/s each way slow a
// product by 4 %, where NCCL's 110 GB/s slow it by 12 %), or by kernels, which are done sooner when
// nothing runs beside them (8 us where NCCL takes 19) and can add. Ranks write into the partner's
// memory: within one process a copy engine that reads from it starts 12 us later. Small messages go
// into a ring of the receiver's, from where its stream takes them: no way back to the sender is on
// their path.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/ir/peer_traffic.h"
#include "planner/ir/program.h"
#include "runtime/cuda/message_ring.h"
#include "runtime/cuda/peer_kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// One operation of a step: what to expect, and what of the next rank's arena it uses.
struct PeerOp {
  planner::OpKind kind{};
  int64_t bytes = 0;   ///< whole buffer of an all-reduce, output of an all-gather, input of a
                       ///< reduce-scatter, else what goes one way
  int64_t theirs = 0;  ///< offset in the next rank's arena: their buffer of an all-reduce, their
                       ///< input of a reduce-scatter, else their output; unused by kRecv
};

/// What carries the operations of a group.
struct PeerRoutes {
  planner::CommunicatorKind group{};
  int64_t ranks = 2;
  std::optional<planner::PeerCarrier> moves;  ///< as of planner::PeerCarrierOf

  planner::PeerCarrier Of(planner::OpKind kind, int64_t bytes, planner::DType dtype) const {
    return planner::PeerTrafficPossible(bytes, ranks, dtype)
               ? planner::PeerCarrierOf(kind, bytes, ranks, moves)
               : planner::PeerCarrier::kNccl;
  }
};

/// This rank's end of a group, as a ring: it writes into the next rank's memory and the one before
/// writes into its own; of two ranks both are the partner. All put their operations on one stream
/// each, in the order of `ops`, step after step. Order between the ranks is kept by counters in
/// device memory that streams and kernels write and wait for, so the host never waits. Errors:
/// kRunFailed for an operation that is not the next one of `ops`, and what CUDA reports.
class PeerChannel {
 public:
  /// What one rank maps of its neighbours. All outlive the channel. The first kCounterBytes of a
  /// mailbox are zeros; neighbours write there, and behind them what they send for a while.
  struct Ends {
    int position = 0;  ///< in the group
    int ranks = 2;
    std::byte* their_arena = nullptr;  ///< of the next rank
    std::byte* own_mailbox = nullptr;
    std::byte* their_mailbox = nullptr;   ///< of the next rank
    std::byte* before_mailbox = nullptr;  ///< of the rank before
    int64_t own_ring_bytes = 0;  ///< of the ring for messages in a mailbox; 0: slots for sums
    int64_t their_ring_bytes = 0;
  };
  static constexpr int64_t kCounterBytes = 1024;
  /// Largest input of a reduce-scatter by PeerSmallSum.
  static constexpr int64_t kMostSmallSumBytes = 64 << 10;

  explicit PeerChannel(const Ends& ends)
      : ends_(ends), ring_(std::max(ends.own_ring_bytes, ends.their_ring_bytes)) {}
  /// What comes from now on, on all ranks.
  void Follow(std::vector<PeerOp> ops, const PeerRoutes& routes);

  /// The same answer on all ranks. kSend and kRecv are one.
  bool Takes(planner::OpKind kind, int64_t bytes, planner::DType dtype) const {
    return routes_.Of(kind, bytes, dtype) != planner::PeerCarrier::kNccl;
  }

  /// As of DeviceCommunicator; sums are rounded once, the same bits on both ranks.
  Status AllReduce(std::byte* buffer, int64_t count, planner::DType dtype, cudaStream_t stream);
  Status AllGather(const std::byte* in, std::byte* out, int64_t bytes, planner::DType dtype,
                   cudaStream_t stream);
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                       cudaStream_t stream);
  Status Shift(const std::byte* in, int64_t bytes, planner::DType dtype, cudaStream_t stream);
  Status Send(const std::byte* buffer, int64_t bytes, planner::DType dtype, cudaStream_t stream);
  Status Recv(std::byte* buffer, int64_t bytes, planner::DType dtype, cudaStream_t stream);

 private:
  Result<PeerOp> Next(planner::OpKind kind, int64_t bytes);
  Status Publish(uint32_t value, std::byte* mailbox, int64_t counter, cudaStream_t stream) const;
  Status Await(uint32_t value, int64_t counter, cudaStream_t stream) const;
  Status Meet(cudaStream_t stream);
  Status Part(cudaStream_t stream);
  /// `bytes` of this rank to where the next wants them and, unless that is null, to `out`.
  Status Push(const std::byte* from, std::byte* their_out, std::byte* out, int64_t bytes,
              planner::PeerCarrier carrier, cudaStream_t stream);
  PeerTurn NextTurn();
  Landings NextLandings();
  /// Whether a message goes into the receiver's ring.
  bool Buffered(const PeerOp& op, planner::DType dtype) const;

  const Ends ends_;
  std::vector<PeerOp> ops_;
  PeerRoutes routes_;
  size_t next_ = 0;      ///< index into ops_
  uint32_t met_ = 0;     ///< copies for which the next rank's memory was free
  uint32_t parted_ = 0;  ///< copies that have come
  uint32_t turn_ = 0;    ///< kernels so far
  uint32_t slot_ = 0;    ///< small sums so far
  MessageRing ring_;     ///< of the pair's receiver
};

/// kRunFailed when the driver has no operations on memory in stream order.
Status CheckStreamMemoryOps();

}  // namespace meshwright::runtime::cuda
