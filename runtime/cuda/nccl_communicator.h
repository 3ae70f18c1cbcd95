// One NCCL communicator. Internal to NcclWorld.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/cuda/device_communicator.h"

namespace meshwright::runtime::cuda {

/// "what: ncclAllReduce: unhandled cuda error (1), last error of NCCL: ..." for a result that is
/// one. `communicator` may be nullptr.
Status NcclStatus(ncclResult_t result, const char* call, const std::string& what,
                  ncclComm_t communicator);

/// Facts of a communicator that is to be made.
struct NcclFacts {
  std::string name;
  planner::CommunicatorKind kind = planner::CommunicatorKind::kWorld;
  int32_t group = -1;  ///< index into Programs::groups
  int size = 1;
  int rank = 0;
  int ctas = 4;  ///< 0: as NCCL chooses
  DeviceCommunicatorObserver* observer = nullptr;
};

/// With one member it is a copy on the stream, or nothing, and has no NCCL communicator.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  explicit NcclCommunicator(NcclFacts facts) : facts_(std::move(facts)) {}

  const std::string& name() const override { return facts_.name; }
  planner::CommunicatorKind kind() const override { return facts_.kind; }
  int size() const override { return facts_.size; }
  int rank() const override { return facts_.rank; }
  int64_t sequence() const override { return sequence_; }

  Status AllReduce(std::byte* buffer, int64_t count, planner::DType dtype,
                   cudaStream_t stream) override;
  Status AllGather(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                   cudaStream_t stream) override;
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
                       cudaStream_t stream) override;
  Status Broadcast(std::byte* buffer, int64_t count, planner::DType dtype, int root,
                   cudaStream_t stream) override;
  Status Shift(const std::byte* in, std::byte* out, int64_t count, planner::DType dtype,
              cudaStream_t stream) override;
  Status Send(const std::byte* buffer, int64_t count, planner::DType dtype, int peer,
              cudaStream_t stream) override;
  Status Recv(std::byte* buffer, int64_t count, planner::DType dtype, int peer,
              cudaStream_t stream) override;

  void UsePeerChannel(PeerChannel* channel) override { channel_ = channel; }

  /// The configuration of this communicator; `blocking` as NCCL understands it. It points to the
  /// name, so the object outlives NCCL's communicator.
  ncclConfig_t Config(bool blocking) const;
  /// Where NCCL puts its communicator, possibly after the call has returned.
  ncclComm_t* slot() { return &communicator_; }

  /// Calls `use` with NCCL's communicator, unless it was aborted or another thread uses it for
  /// longer than `patience_s`: then the result is ncclInProgress.
  template <typename Use>
  ncclResult_t With(double patience_s, const Use& use);

  /// "communicator 'dp 0,1' (data), member 0 of 2, after its operation 12".
  std::string Describe() const;
  /// NCCL has made it: from now on it can be checked and aborted.
  void SetReady() { ready_ = true; }
  /// An error found in the background; ok while the communicator is busy in another thread.
  Status CheckAsync();
  bool aborted() const { return aborted_; }
  /// Later operations fail.
  void Forbid() { aborted_ = true; }
  /// ncclCommAbort, if it is ready; blocks until NCCL has ended.
  void Abort();
  /// Waits for everything and frees it. Blocks; the caller sees to a deadline.
  Status Close();
  /// Operations after this are counted and shown to the observer; those of the warm-up are not.
  void StartCounting() { counting_ = true; }

 private:
  /// An operation as it is asked for.
  struct Call {
    CommOp op;
    const char* function;
    int64_t count;
    int64_t bytes;
    planner::DType dtype;
    int peer = 0;
  };
  Status Check(const Call& call) const;
  template <typename Enqueue>
  Status Put(const Call& call, cudaStream_t stream, const Enqueue& enqueue);
  template <typename Enqueue>
  Status PutPeer(const Call& call, cudaStream_t stream, const Enqueue& enqueue);
  bool ByPeer(planner::OpKind kind, const Call& call) const;
  Status Copy(const std::byte* from, std::byte* to, int64_t bytes, cudaStream_t stream) const;

  const NcclFacts facts_;
  std::timed_mutex mutex_;  ///< held during calls into NCCL
  ncclComm_t communicator_ = nullptr;
  std::atomic<int64_t> sequence_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> ready_{false};
  bool counting_ = false;
  PeerChannel* channel_ = nullptr;  ///< nullptr: NCCL does everything
};

template <typename Use>
ncclResult_t NcclCommunicator::With(double patience_s, const Use& use) {
  const std::unique_lock lock(mutex_, std::chrono::duration<double>(patience_s));
  if (!lock.owns_lock() || aborted_ || communicator_ == nullptr) return ncclInProgress;
  return use(communicator_);
}

}  // namespace meshwright::runtime::cuda
