// Communicators of GPU ranks: operations are put on a stream and run in its order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"
#include "runtime/flight_recorder.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

class PeerChannel;  // peer_channel.h

/// A group of ranks with a GPU each, numbered 0 .. size()-1 in communicator order. Buffers are
/// device memory, counts are elements; bf16, fp32, fp64, int32 and int64. An ok status means that
/// the operation is on the stream, not that it is done. The members put the same operations on a
/// communicator in the same order, each from one thread and on one stream at a time.
///
/// Errors (kRunFailed) name the communicator, the operation and its sequence number. Operations
/// that fail or hang on the device are seen by NcclWorld::CheckAsync and the watchdog.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual const std::string& name() const = 0;
  virtual planner::CommunicatorKind kind() const = 0;
  virtual int size() const = 0;
  virtual int rank() const = 0;          ///< position of the caller
  virtual int64_t sequence() const = 0;  ///< operations put on a stream so far

  /// buffer [count] becomes the sum over the members, the same bits on all.
  virtual Status AllReduce(std::byte* buffer, int64_t count, planner::DType dtype,
                           cudaStream_t stream) = 0;
  /// in [count] of every member -> out [size() * count] in communicator order. `in` may be the
  /// caller's own slice of `out`; otherwise they must not overlap.
  virtual Status AllGather(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                           cudaStream_t stream) = 0;
  /// Sum of in [size() * count]; member i keeps slice i in out [count]. `out` may be the caller's
  /// own slice of `in`; the rest of `in` is not changed.
  virtual Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count,
                               planner::DType dtype, cudaStream_t stream) = 0;
  /// buffer [count] of member `root` to all.
  virtual Status Broadcast(std::byte* buffer, int64_t count, planner::DType dtype, int root,
                           cudaStream_t stream) = 0;
  /// Of two members: the other's in [count] -> out [count]. No overlap.
  virtual Status Shift(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                      cudaStream_t stream) = 0;
  virtual Status Send(const std::byte* buffer, int64_t count, planner::DType dtype, int peer,
                      cudaStream_t stream) = 0;
  virtual Status Recv(std::byte* buffer, int64_t count, planner::DType dtype, int peer,
                      cudaStream_t stream) = 0;

  /// From now on operations that `channel` takes go through it, all but broadcasts. It outlives all
  /// operations; set on both ranks before the first one.
  virtual void UsePeerChannel(PeerChannel* channel) = 0;
};

/// Told of every operation, on the thread that issues it.
class DeviceCommunicatorObserver {
 public:
  virtual ~DeviceCommunicatorObserver() = default;
  /// `record` has group, op, sequence, bytes and dtype; the operation goes on `stream` next.
  virtual void Before(const FlightRecord& record, cudaStream_t stream) = 0;
  /// It is on the stream.
  virtual void After(const FlightRecord& record, cudaStream_t stream) = 0;
};

}  // namespace meshwright::runtime::cuda
