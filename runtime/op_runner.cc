#include "runtime/op_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace meshwright::runtime {

using planner::OpKind;
using planner::Scalar;
using planner::TensorView;

namespace {

constexpr int32_t kMasked = -100;  ///< label that does not count

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
  for (auto& ids : samples_) ids.resize(static_cast<size_t>(context.facts.sequence) + 1);
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
      return Load(call, step, false);
    case OpKind::kLoadLabels:
      return Load(call, step, true);
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

Status OpRunner::Load(const OpCall& call, int64_t step, bool labels) {
  const planner::StepFacts& facts = context_.facts;
  const int64_t rows = facts.micro_batch;
  const TensorView& view = *call.View(0);
  const int64_t micro_batch = call.task.micro_batch;
  if (view.dtype != planner::DType::kI32 || view.elements() != facts.sequence * rows ||
      micro_batch < 0) {
    return Infeasible(fmt::format(
        "micro-batch {} into {} {}; expected int32 [{}, {}] and a micro-batch >= 0", micro_batch,
        view.elements(), planner::ToString(view.dtype), facts.sequence, rows));
  }
  auto* out = reinterpret_cast<int32_t*>(call.Address(0));
  std::vector<int32_t>& ids = samples_[static_cast<size_t>(call.op.stream)];
  const int64_t lane = micro_batch * context_.grid.dp + context_.binding->dp_index;
  for (int64_t j = 0; j < rows; ++j) {
    const int64_t sample = lane * rows + j;
    MW_RETURN_IF_ERROR(data_.Read(step, sample, facts.sequence, ids.data()));
    for (int64_t s = 0; s < facts.sequence; ++s) {
      int32_t id = ids[static_cast<size_t>(labels ? s + 1 : s)];
      if (labels && options_.label_counts && !options_.label_counts(step, sample, s)) id = kMasked;
      out[s * rows + j] = id;
    }
  }
  return Status::Ok();
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
