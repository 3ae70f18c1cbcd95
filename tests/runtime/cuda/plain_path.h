// The same run of a collective or message as a plain loop over NCCL.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "runtime/cuda/communication_path.h"
#include "runtime/cuda/nccl_communicator.h"

namespace meshwright::runtime::cuda {

/// A loop of NCCL calls on a communicator with NCCL's defaults.
class PlainPath final : public Path {
 public:
  PlainPath(const RateCase& c, ncclComm_t communicator, int rank, int ranks, cudaStream_t stream,
            std::byte* arena, int64_t arena_bytes)
      : case_(c), communicator_(communicator), rank_(rank), ranks_(ranks), stream_(stream) {
    whole_ = arena;
    part_ = c.in_place() ? whole_ + 2 * rank * c.part_elements(ranks) : arena + arena_bytes / 2;
  }

  cudaStream_t stream() const override { return stream_; }

  Status Issue() override {
    for (int i = 0; i < case_.calls; ++i) {
      const ncclResult_t result = Call();
      if (result != ncclSuccess) {
        return NcclStatus(result, "a collective or message", "plain loop over NCCL", communicator_);
      }
    }
    return Status::Ok();
  }

 private:
  ncclResult_t Call() const {
    using planner::OpKind;
    const auto part = static_cast<size_t>(case_.part_elements(ranks_));
    const auto whole = static_cast<size_t>(case_.elements(ranks_));
    switch (case_.kind) {
      case OpKind::kAllGather:
        return ncclAllGather(part_, whole_, part, ncclBfloat16, communicator_, stream_);
      case OpKind::kReduceScatter:
        return ncclReduceScatter(whole_, part_, part, ncclBfloat16, ncclSum, communicator_,
                                 stream_);
      case OpKind::kSend: {
        const auto count = static_cast<size_t>(case_.elements(1));
        return rank_ == 0 ? ncclSend(whole_, count, ncclBfloat16, 1, communicator_, stream_)
                          : ncclRecv(whole_, count, ncclBfloat16, 0, communicator_, stream_);
      }
      default:
        return ncclAllReduce(whole_, whole_, whole, ncclBfloat16, ncclSum, communicator_, stream_);
    }
  }

  const RateCase case_;
  const ncclComm_t communicator_;
  const int rank_, ranks_;
  const cudaStream_t stream_;
  std::byte* whole_;
  std::byte* part_;
};

}  // namespace meshwright::runtime::cuda
