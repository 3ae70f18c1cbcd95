// Communicators: a fixed group of ranks and the operations they do together. The executor knows
// this interface only; threads and MPI implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/ir/dtype.h"
#include "planner/ir/program.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// What the members of a communicator do together.
enum class CommOp : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kShift,
  kBarrier,
  kSplit,
  kSend,
  kRecv,
};
/// "all_reduce", "send" ...
const char* ToString(CommOp op);

/// Settings of a back-end.
struct CommOptions {
  /// An operation that has not met its partners after this time is an error. Seconds, > 0.
  double deadline_s = 60.0;
};

/// A group of ranks. Members are numbered 0 .. size()-1 in communicator order. All operations block
/// until done; a rank has at most one operation in flight on a communicator. Counts are elements.
///
/// Sums (fp32, fp64, int64) add the members' values in the order 0, 1, .. size()-1 in the element
/// type, so all members and all back-ends get the same bits. The other operations move bytes of
/// any type.
///
/// Errors (kRunFailed): members that do not agree (operation, type, count, root), a deadline that
/// passed, use after Abort. They name the communicator, the operation and the ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const std::string& name() const = 0;
  virtual int size() const = 0;
  virtual int rank() const = 0;  ///< position of the caller, 0 .. size()-1

  /// buffer [count] becomes the sum over the members.
  virtual Status AllReduce(std::byte* buffer, int64_t count, planner::DType dtype) = 0;
  /// in [count] of every member -> out [size() * count] in communicator order. `in` may be the
  /// caller's own slice of `out`; otherwise they must not overlap.
  virtual Status AllGather(const std::byte* in, std::byte* out, int64_t count,
                           planner::DType dtype) = 0;
  /// Sum of in [size() * count]; member i keeps slice i in out [count]. `out` may be the caller's
  /// own slice of `in`; the rest of `in` is not changed.
  virtual Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count,
                               planner::DType dtype) = 0;
  /// buffer [count] of member `root` to all.
  virtual Status Broadcast(std::byte* buffer, int64_t count, planner::DType dtype, int root) = 0;
  /// Slice j of in [size() * count] goes to slice rank() of `out` on member j. No overlap.
  virtual Status AllToAll(const std::byte* in, std::byte* out, int64_t count,
                          planner::DType dtype) = 0;
  /// Around the ring of members: in [count] goes to the next one, out [count] comes from the one
  /// before. No overlap.
  virtual Status Shift(const std::byte* in, std::byte* out, int64_t count,
                       planner::DType dtype) = 0;
  /// Done once member `peer` has received.
  virtual Status Send(const std::byte* buffer, int64_t count, planner::DType dtype, int peer) = 0;
  virtual Status Recv(std::byte* buffer, int64_t count, planner::DType dtype, int peer) = 0;
  virtual Status Barrier() = 0;

  /// New communicators of the members that name the same `color`, ordered by (key, rank). Called by
  /// all members; a negative color takes part and gets nullptr.
  virtual Result<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      const std::string& name) = 0;

  /// Ends every present and later operation of all communicators split from the same world, on all
  /// their ranks, with `reason`. The first reason stays. Callable from any thread.
  virtual void Abort(const Status& reason) = 0;
  /// The reason given to Abort, ok while nobody has called it.
  virtual Status abort_reason() const = 0;
};

/// Communicators of the groups that `rank` is in, in the order of `groups`; nullptr for the others.
/// All ranks of `world` call this, and split in index order.
Result<std::vector<std::unique_ptr<Communicator>>> CreateGroups(
    Communicator& world, const std::vector<planner::Group>& groups);

/// acc [count] += add [count] for a type that can be summed.
void AddElements(std::byte* acc, const std::byte* add, int64_t count, planner::DType dtype);
/// Members to which a shift sends and from which it receives.
inline int NextMember(int rank, int size) {
  return (rank + 1) % size;
}
inline int MemberBefore(int rank, int size) {
  return (rank + size - 1) % size;
}
/// An error unless `dtype` is fp32, fp64 or int64.
Status CheckSummable(planner::DType dtype, const std::string& communicator);

}  // namespace meshwright::runtime
