#include "runtime/thread_communicator.h"

#include "runtime/thread_core.h"

namespace meshwright::runtime {
namespace {

using planner::DType;

/// One member's end of a ThreadCore.
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadCore> core, int rank)
      : core_(std::move(core)), rank_(rank) {}

  const std::string& name() const override { return core_->name(); }
  int size() const override { return core_->size(); }
  int rank() const override { return rank_; }

  Status AllReduce(std::byte* buffer, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kAllReduce, dtype, count, -1, buffer, buffer});
  }
  Status AllGather(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kAllGather, dtype, count, -1, in, out});
  }
  Status ReduceScatter(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kReduceScatter, dtype, count, -1, in, out});
  }
  Status Broadcast(std::byte* buffer, int64_t count, DType dtype, int root) override {
    return core_->Run(rank_, {CommOp::kBroadcast, dtype, count, root, nullptr, buffer});
  }
  Status AllToAll(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kAllToAll, dtype, count, -1, in, out});
  }
  Status Shift(const std::byte* in, std::byte* out, int64_t count, DType dtype) override {
    return core_->Run(rank_, {CommOp::kShift, dtype, count, -1, in, out});
  }
  Status Send(const std::byte* buffer, int64_t count, DType dtype, int peer) override {
    return core_->Run(rank_, {CommOp::kSend, dtype, count, peer, buffer, nullptr});
  }
  Status Recv(std::byte* buffer, int64_t count, DType dtype, int peer) override {
    return core_->Run(rank_, {CommOp::kRecv, dtype, count, peer, nullptr, buffer});
  }
  Status Barrier() override { return core_->Run(rank_, {CommOp::kBarrier}); }

  Result<std::unique_ptr<Communicator>> Split(int color, int key,
                                              const std::string& name) override {
    ThreadRequest request{CommOp::kSplit};
    request.color = color;
    request.key = key;
    request.name = &name;
    MW_RETURN_IF_ERROR(core_->Run(rank_, request));
    int position = -1;
    std::shared_ptr<ThreadCore> core = core_->TakeSplit(rank_, &position);
    if (core == nullptr) return std::unique_ptr<Communicator>();
    return std::unique_ptr<Communicator>(
        std::make_unique<ThreadCommunicator>(std::move(core), position));
  }

  void Abort(const Status& reason) override { core_->world().Abort(reason); }
  Status abort_reason() const override { return core_->world().Reason(); }

 private:
  const std::shared_ptr<ThreadCore> core_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadWorld(int ranks, const CommOptions& options) {
  auto world = std::make_shared<ThreadWorld>();
  world->options = options;
  std::vector<int> all;
  for (int i = 0; i < ranks; ++i) all.push_back(i);
  const std::shared_ptr<ThreadCore> core = MakeThreadCore(world, "world", std::move(all));
  std::vector<std::unique_ptr<Communicator>> out;
  for (int i = 0; i < ranks; ++i) out.push_back(std::make_unique<ThreadCommunicator>(core, i));
  return out;
}

}  // namespace meshwright::runtime
