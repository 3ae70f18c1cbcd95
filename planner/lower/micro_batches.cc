#include <fmt/format.h>

#include "planner/lower/step_parts.h"

namespace meshwright::planner::lower {
namespace {

/// Walks the schedule of a stage.
class MicroBatches {
 public:
  MicroBatches(ProgramBuilder& builder, const StepBegin& begin)
      : builder_(builder),
        plan_(builder.plan()),
        stage_(builder.stage()),
        begin_(begin),
        unfinished_(stage_.buckets.size(), 0) {
    complete_.bucket.assign(stage_.buckets.size(), -1);
    for (const StageItem& item : stage_.items) {
      if (item.bucket >= 0) ++unfinished_[static_cast<size_t>(item.bucket)];
    }
  }

  CompleteGradients Run() {
    MakeBlocks();
    const std::vector<ScheduleStep>& steps = builder_.steps();
    for (size_t i = 0; i < steps.size(); ++i) {
      const int64_t slot = builder_.slots().slot[i];
      if (steps[i].forward) {
        Forward(steps[i], slot);
      } else {
        Backward(steps[i], slot);
      }
    }
    return std::move(complete_);
  }

 private:
  bool FirstVirtualStage(const ScheduleStep& s) const { return stage_.stage == 0 && s.chunk == 0; }
  bool LastVirtualStage(const ScheduleStep& s) const {
    return stage_.stage == builder_.module().pp - 1 &&
           s.chunk == builder_.module().virtual_stages - 1;
  }

  // Blocks beside the templates
  void MakeBlocks();
  int32_t MessageBlock(Edge e, OpKind kind);
  TensorView Residual(Region region) const {
    return {"residual",
            stage_.split.dtypes.compute,
            {stage_.split.local_sequence(), plan_.micro_batch, stage_.split.module->hidden},
            region};
  }

  // Tasks
  void Forward(const ScheduleStep& s, int64_t slot);
  void Backward(const ScheduleStep& s, int64_t slot);
  void Message(Edge e, const ScheduleStep& s, bool receive);
  void WaitForParameters(const ScheduleStep& s, const StageItem& item, Instance& i) const;
  void FinishItem(const StageItem& item, Instance& i);

  ProgramBuilder& builder_;
  const Plan& plan_;
  const Stage& stage_;
  const StepBegin& begin_;
  int32_t message_block_[4] = {-1, -1, -1, -1};  ///< by Edge
  int32_t join_block_ = -1;
  int32_t load_tokens_block_ = -1;
  std::vector<int64_t> unfinished_;  ///< by bucket: items with gradients to come
  size_t finished_items_ = 0;
  CompleteGradients complete_;
};

int32_t MicroBatches::MessageBlock(Edge e, OpKind kind) {
  const StageCommunicators& communicators = builder_.communicators();
  const int32_t c = communicators.Of(e);
  if (c < 0) return -1;
  const bool send = kind == OpKind::kSend;
  return builder_.OneOp(
      fmt::format("{} {}", send ? "send" : "recv", communicators.list[static_cast<size_t>(c)].name),
      kind, builder_.edge(e).stream,
      {{Residual(Region::kOut0), send ? Access::kRead : Access::kWrite}},
      {.communicator = c, .peer = send ? 1 : 0});
}

void MicroBatches::MakeBlocks() {
  for (Edge e : {Edge::kActIn, Edge::kActOut, Edge::kGradIn, Edge::kGradOut}) {
    const bool receive = e == Edge::kActIn || e == Edge::kGradIn;
    message_block_[static_cast<size_t>(e)] =
        MessageBlock(e, receive ? OpKind::kRecv : OpKind::kSend);
  }
  join_block_ = builder_.OneOp("join residual", OpKind::kAdd, kComputeStream,
                               {{Residual(Region::kIn0), Access::kRead},
                                {Residual(Region::kIn1), Access::kRead},
                                {Residual(Region::kOut0), Access::kWrite}});
  if (builder_.templates().tensor_stream()) builder_.OpOf(join_block_).waits.push_back(kTensorDone);
  if (builder_.HasEmbedding()) {
    const TensorView tokens = {
        "tokens", DType::kI32, {plan_.sequence, plan_.micro_batch}, Region::kSaved};
    load_tokens_block_ = builder_.OneOp("load tokens", OpKind::kLoadTokens, kComputeStream,
                                        {{tokens, Access::kWrite}});
  }
}

/// A receive or send on edge `e`, in the buffer whose turn it is.
void MicroBatches::Message(Edge e, const ScheduleStep& s, bool receive) {
  const EdgeBuffers& b = builder_.edge(e);
  Task& t = builder_.NewTask(receive ? TaskKind::kRecv : TaskKind::kSend, s.chunk, s.micro_batch);
  t.gradient = e == Edge::kGradIn || e == Edge::kGradOut;
  Instance i = builder_.Bind(message_block_[static_cast<size_t>(e)]);
  Base(i, Region::kOut0) = b.address();
  i.waits.push_back(receive ? b.free[b.slot()] : b.ready[b.slot()]);
  i.signals.push_back(receive ? b.ready[b.slot()] : b.free[b.slot()]);
  t.instances.push_back(std::move(i));
}

/// Parameters of the previous step must have been gathered before their first use.
void MicroBatches::WaitForParameters(const ScheduleStep& s, const StageItem& item,
                                     Instance& i) const {
  if (s.micro_batch != 0 || !builder_.GathersParameters()) return;
  for (int32_t b : {item.bucket, stage_.late_bucket}) {
    if (b >= 0) i.waits.push_back(begin_.gathered[static_cast<size_t>(b)]);
  }
}

void MicroBatches::Forward(const ScheduleStep& s, int64_t slot) {
  EdgeBuffers& in = builder_.edge(Edge::kActIn);
  EdgeBuffers& out = builder_.edge(Edge::kActOut);
  const bool receives = !FirstVirtualStage(s);
  const bool sends = !LastVirtualStage(s);
  if (receives) {
    Message(Edge::kActIn, s, true);
  } else {
    Task& t = builder_.NewTask(TaskKind::kLoadBatch, s.chunk, s.micro_batch);
    t.instances.push_back(builder_.BindItem(load_tokens_block_, stage_.items.front(), slot));
  }
  Task& t = builder_.NewTask(TaskKind::kForward, s.chunk, s.micro_batch);
  int64_t residual = receives ? in.address() : builder_.CarriedResidual();
  for (const StageItem& item : stage_.items) {
    if (item.chunk != s.chunk || item.kind == ItemKind::kHead) continue;
    Instance i = builder_.BindItem(builder_.templates().Forward(item), item, slot);
    Base(i, Region::kIn0) = residual;
    WaitForParameters(s, item, i);
    if (receives && item.first_of_chunk) {
      i.waits.push_back(in.ready[in.slot()]);
      i.signals.push_back(in.free[in.slot()]);
    }
    const int64_t saved = builder_.templates().SavedOutput(item);
    residual = saved >= 0 ? builder_.SavedAddress(item, slot) + saved : builder_.CarriedResidual();
    t.instances.push_back(std::move(i));
  }
  Instance join = builder_.Bind(join_block_);
  Base(join, Region::kIn0) = residual;
  if (sends) {
    Base(join, Region::kOut0) = out.address();
    join.waits.push_back(out.free[out.slot()]);
    join.signals.push_back(out.ready[out.slot()]);
  } else {
    Base(join, Region::kOut0) = builder_.SavedAddress(stage_.items.back(), slot);
  }
  t.instances.push_back(std::move(join));
  if (receives) ++in.used;
  if (sends) {
    Message(Edge::kActOut, s, false);
    ++out.used;
  }
}

void MicroBatches::Backward(const ScheduleStep& s, int64_t slot) {
  EdgeBuffers& in = builder_.edge(Edge::kGradIn);
  EdgeBuffers& out = builder_.edge(Edge::kGradOut);
  const bool receives = !LastVirtualStage(s);
  const bool sends = !FirstVirtualStage(s);
  const bool first = s.micro_batch == 0;
  if (receives) Message(Edge::kGradIn, s, true);
  Task& t = builder_.NewTask(TaskKind::kBackward, s.chunk, s.micro_batch);
  bool entry = receives;  // the next instance reads the received gradient
  for (size_t k = stage_.items.size(); k-- > 0;) {
    const StageItem& item = stage_.items[k];
    if (item.chunk != s.chunk) continue;
    Instance i = builder_.BindItem(builder_.templates().Backward(item, first), item, slot);
    if (item.kind == ItemKind::kHead) {
      Base(i, Region::kIn0) = builder_.SavedAddress(item, slot);
      Base(i, Region::kIo) += s.micro_batch * builder_.LabelBytes();
      WaitForParameters(s, item, i);
      if (first) i.waits.push_back(begin_.counted);
    }
    if (entry) {
      Base(i, Region::kIn0) = in.address();
      i.waits.push_back(in.ready[in.slot()]);
      i.signals.push_back(in.free[in.slot()]);
      entry = false;
    }
    if (sends && item.first_of_chunk) {
      Base(i, Region::kOut0) = out.address();
      i.waits.push_back(out.free[out.slot()]);
      i.signals.push_back(out.ready[out.slot()]);
    }
    if (s.micro_batch == plan_.micro_batches - 1) FinishItem(item, i);
    t.instances.push_back(std::move(i));
  }
  if (receives) ++in.used;
  if (sends) {
    Message(Edge::kGradOut, s, false);
    ++out.used;
  }
}

/// The item's gradients are complete: when it is the last of its bucket, the bucket may leave.
void MicroBatches::FinishItem(const StageItem& item, Instance& i) {
  if (item.bucket >= 0) {
    const auto b = static_cast<size_t>(item.bucket);
    if (--unfinished_[b] == 0) {
      complete_.bucket[b] = builder_.NewEvent();
      i.signals.push_back(complete_.bucket[b]);
      complete_.order.push_back(item.bucket);
    }
  }
  if (++finished_items_ == stage_.items.size()) {
    complete_.all = builder_.NewEvent();
    i.signals.push_back(complete_.all);
  }
}

}  // namespace

CompleteGradients RunMicroBatches(ProgramBuilder& builder, const StepBegin& begin) {
  return MicroBatches(builder, begin).Run();
}

}  // namespace meshwright::planner::lower
