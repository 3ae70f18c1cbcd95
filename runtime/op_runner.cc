#include "runtime/op_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/micro_batch.h"

namespace meshwright::runtime {

using planner::OpKind;
using planner::Scalar;
using planner::TensorView;

namespace {

std::byte* ScalarAddress(std::byte* arena, const planner::RankProgram& program, Scalar scalar) {
  return arena + program.arena.io + 8 * static_cast<int64_t>(scalar);
}

bool IsCommunication(OpKind kind) {
  return planner::IsCollective(kind) || planner::IsMessage(kind);
}

}  // namespace

OpRunner::OpRunner(const RankContext& context, const KernelTable& kernels, DataSource& data,
                   const RunOptions& options, StepRecorder& recorder, std::byte* arena,
                   std::vector<Communicator*> communicators)
    : context_(context),
      kernels_(kernels),
      data_(data),
      options_(options),
      recorder_(recorder),
      arena_(arena),
      communicators_(std::move(communicators)) {
  samples_.resize(std::max<size_t>(context.program->streams.size(), 1));
}

Status OpRunner::CheckKinds(const IssueOrder& order, const KernelTable& kernels) {
  for (const IssuedOp& op : order.ops) {
    const OpKind kind = op.op->kind;
    if (IsCommunication(kind) || planner::IsHost(kind)) continue;
    if (kernels.kernels[static_cast<size_t>(kind)] != nullptr) continue;
    return Unsupported(fmt::format("task {}: op {} has no kernel for device {}",
                                   Label(*op.task_ptr), planner::ToString(kind), kernels.device));
  }
  return Status::Ok();
}

Status OpRunner::Run(const IssuedOp& op, int64_t step) {
  const OpCall call{context_, *op.block, *op.op, *op.instance, *op.task_ptr, arena_};
  const OpKind kind = op.op->kind;
  switch (kind) {
    case OpKind::kLoadTokens:
    case OpKind::kLoadLabels:
      return ReadMicroBatch(call, step, data_, options_,
                            &samples_[static_cast<size_t>(op.op->stream)],
                            reinterpret_cast<int32_t*>(call.Address(0)));
    case OpKind::kReadBack:
      return ReadBack(call, step);
    default:
      break;
  }
  if (IsCommunication(kind)) return Communicate(call);
  return kernels_.kernels[static_cast<size_t>(kind)](call);
}

void OpRunner::WriteStepScalars(int64_t step) {
  const double rate = LearningRate(options_.lr, step + 1);
  const int64_t number = step + 1;
  std::memcpy(ScalarAddress(arena_, *context_.program, Scalar::kLearningRate), &rate, 8);
  std::memcpy(ScalarAddress(arena_, *context_.program, Scalar::kStepNumber), &number, 8);
}

Status OpRunner::Communicate(const OpCall& call) {
  const planner::OpAttributes& attributes = call.op.attributes;
  Communicator& c = *communicators_[static_cast<size_t>(attributes.communicator)];
  const TensorView* first = call.View(0);
  std::byte* a = call.Address(0);
  switch (call.op.kind) {
    case OpKind::kAllReduce:
      return c.AllReduce(a, first->elements(), first->dtype);
    case OpKind::kSend:
      return c.Send(a, first->elements(), first->dtype, attributes.peer);
    case OpKind::kRecv:
      return c.Recv(a, first->elements(), first->dtype, attributes.peer);
    case OpKind::kAllGather: {
      const TensorView* out = call.View(1);
      const int64_t count = out->elements() / c.size();
      std::byte* b = call.Address(1);
      const std::byte* in = a != nullptr ? a : b + c.rank() * count * planner::SizeOf(out->dtype);
      return c.AllGather(in, b, count, out->dtype);
    }
    case OpKind::kShift:
      return c.Shift(a, call.Address(1), first->elements(), first->dtype);
    case OpKind::kReduceScatter: {
      const int64_t count = first->elements() / c.size();
      std::byte* out = call.Address(1);
      if (out == nullptr) out = a + c.rank() * count * planner::SizeOf(first->dtype);
      return c.ReduceScatter(a, out, count, first->dtype);
    }
    default:
      return Unsupported(fmt::format("op {} is no communication", planner::ToString(call.op.kind)));
  }
}

Status OpRunner::ReadBack(const OpCall& call, int64_t step) {
  double statistics[3];  // squared gradient norm, loss sum, token count
  if (call.View(0)->bytes() < static_cast<int64_t>(sizeof(statistics))) {
    return Infeasible("the statistics have less than 3 values");
  }
  std::memcpy(statistics, call.Address(0), sizeof(statistics));
  recorder_.OnReadBack(step, statistics[1] / statistics[2], std::sqrt(statistics[0]));
  return Status::Ok();
}

}  // namespace meshwright::runtime
