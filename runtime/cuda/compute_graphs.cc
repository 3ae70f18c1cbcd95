#include "runtime/cuda/compute_graphs.h"

#include <utility>

#include "planner/ir/op_schema.h"
#include "runtime/cuda/cuda_device.h"

namespace meshwright::runtime::cuda {
namespace {

using planner::OpKind;

/// A kernel whose arguments are the same in every step.
bool Fits(const RankSetup& setup, const IssuedOp& op) {
  const OpKind kind = op.op->kind;
  return op.op->stream == planner::kComputeStream && !planner::IsCollective(kind) &&
         !planner::IsMessage(kind) && kind != OpKind::kLoadTokens && kind != OpKind::kLoadLabels &&
         kind != OpKind::kReadBack && !setup.reads_scalars[static_cast<size_t>(op.index)];
}

bool Waits(const IssuedOp& op) {
  return !op.op->waits.empty() || op.takes_waits;
}
bool Signals(const IssuedOp& op) {
  return op.op->signal >= 0 || (op.last_of_instance && !op.instance->signals.empty());
}

}  // namespace

std::vector<Segment> ComputeSegments(const RankSetup& setup, int32_t least) {
  std::vector<Segment> segments;
  const std::vector<IssuedOp>& ops = setup.order.ops;
  for (size_t i = 0; i < ops.size();) {
    size_t end = i + 1;  // behind the segment that begins with op i
    if (Fits(setup, ops[i])) {
      while (end < ops.size() && ops[end].task == ops[i].task && Fits(setup, ops[end]) &&
             !Waits(ops[end]) && !Signals(ops[end - 1])) {
        ++end;
      }
      const Segment segment{ops[i].index, ops[end - 1].index};
      if (segment.last - segment.first + 1 >= least) segments.push_back(segment);
    }
    i = end;
  }
  return segments;
}

Status BeginGraphCapture(cudaStream_t stream) {
  MW_CUDA_CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  return Status::Ok();
}

Result<LaunchableGraph> EndGraphCapture(cudaStream_t stream) {
  cudaGraph_t captured = nullptr;
  MW_CUDA_CALL(cudaStreamEndCapture(stream, &captured));
  cudaGraphExec_t launchable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&launchable, captured, 0);
  static_cast<void>(cudaGraphDestroy(captured));
  MW_RETURN_IF_ERROR(CudaStatus(made, "cudaGraphInstantiate"));
  return LaunchableGraph(launchable);
}

void ComputeGraphs::Use(const RankSetup& setup) {
  segment_of_.assign(setup.order.ops.size(), -1);
  for (const Segment& segment : ComputeSegments(setup)) {
    for (int32_t op = segment.first; op <= segment.last; ++op) {
      segment_of_[static_cast<size_t>(op)] = static_cast<int32_t>(graphs_.size());
    }
    graphs_.push_back(Graph{segment, nullptr});
  }
}

Status ComputeGraphs::Put(const IssuedOp& op, cudaStream_t stream,
                          const std::function<Status()>& enqueue) {
  const int32_t segment = used() ? segment_of_[static_cast<size_t>(op.index)] : -1;
  if (segment < 0) return enqueue();
  Graph& graph = graphs_[static_cast<size_t>(segment)];
  if (graph.launchable == nullptr) return Capture(op, graph, stream, enqueue);
  if (op.index == graph.segment.first)
    MW_CUDA_CALL(cudaGraphLaunch(graph.launchable.get(), stream));
  return Status::Ok();
}

Status ComputeGraphs::Capture(const IssuedOp& op, Graph& graph, cudaStream_t stream,
                              const std::function<Status()>& enqueue) {
  if (op.index == graph.segment.first) MW_RETURN_IF_ERROR(BeginGraphCapture(stream));
  Status status = enqueue();
  if (status.ok() && op.index != graph.segment.last) return status;
  Result<LaunchableGraph> captured = EndGraphCapture(stream);
  MW_RETURN_IF_ERROR(status);
  MW_ASSIGN_OR_RETURN(graph.launchable, std::move(captured));
  MW_CUDA_CALL(cudaGraphLaunch(graph.launchable.get(), stream));
  return Status::Ok();
}

}  // namespace meshwright::runtime::cuda
