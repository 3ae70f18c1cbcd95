// Lowered programs whose order, slots or buffers are wrong: each is refused, with ranks and task
// named.
#include "tests/planner/verify_mutation.h"

namespace meshwright::planner {
namespace {

using testing::At;
using testing::CommunicatorOf;
using testing::EraseTask;
using testing::LayerOf;
using testing::MoveSlot;
using testing::Mutation;
using testing::OperandOf;
using testing::OpOfKind;
using testing::Own;
using testing::OwnBlock;
using testing::RemoveWaits;
using testing::TaskAt;
using testing::TaskOf;

/// Moves the first tensor of the saved area that `writer` writes onto the next one.
void OverlapSaved(Block& block) {
  std::vector<TensorView*> saved;
  for (Op& op : block.ops) {
    for (Operand& o : op.operands) {
      if (o.tensor < 0 || o.access != Access::kWrite) continue;
      TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
      if (t.region == Region::kSaved) saved.push_back(&t);
    }
  }
  ASSERT_GE(saved.size(), 2U);
  saved[0]->offset = saved[1]->offset;
}

/// Puts the tensors of the scratch area that are live at the same time on one address.
void OverlapScratch(Block& block) {
  Op& op = OpOfKind(block, OpKind::kActivationGrad);
  OperandOf(block, op, "s").offset = OperandOf(block, op, "ds").offset;
  Op& weight = OpOfKind(block, OpKind::kLinearWeightGrad);
  OperandOf(block, weight, "x").offset = OperandOf(block, weight, "dy").offset;
}

std::vector<Mutation> OrderMutations() {
  return {
      {"MissingWaitForReceive",
       [](Programs& p) { RemoveWaits(TaskOf(Own(p, 4), "Forward(0,2)")); },
       {"races", "rank 4", "Recv act(0,2)", "Forward(0,2)"}},
      {"MissingWaitForSendBuffer",
       [](Programs& p) { RemoveWaits(TaskOf(Own(p, 0), "Forward(0,2)")); },
       {"races", "rank 0", "Send act(0,", "Forward(0,2)"}},
      {"MissingWaitForCount",
       [](Programs& p) { RemoveWaits(TaskOf(Own(p, 5), "Backward(0,0)")); },
       {"races", "rank 5", "CountTokens", "Backward(0,0)"}},
      {"MissingWaitForReducedBucket",
       [](Programs& p) { RemoveWaits(TaskOf(Own(p, 3), "ClipNorm")); },
       {"races", "rank 3", "ReduceGrads", "ClipNorm"}},
      {"MissingWaitForGatheredParameters",
       [](Programs& p) { RemoveWaits(TaskOf(Own(p, 3), "Forward(0,0)")); },
       {"races", "rank 3", "GatherParams", "Forward(0,0)", "in the next step"}},
      {"MissingWaitInsideALayer",
       [](Programs& p) {
         RankProgram& own = Own(p, 3);
         Block& block = OwnBlock(own, LayerOf(TaskOf(own, "Forward(0,3)"), 1));
         for (Op& op : block.ops) {
           if (op.stream == kComputeStream) op.waits.clear();
         }
       },
       {"races", "rank 3", "Forward(0,3)", "stream tensor"}},
      {"WaitForTheWrongEvent",
       [](Programs& p) {
         RankProgram& own = Own(p, 4);
         Instance& recv = TaskOf(own, "Recv act(0,2)").instances.front();
         Instance& use = TaskOf(own, "Forward(0,2)").instances.front();
         for (EventId& e : use.waits) {
           if (e == recv.signals.front())
             e = TaskOf(own, "Recv act(0,3)").instances.front().signals.front();
         }
       },
       {"races", "rank 4", "Recv act(0,2)", "Forward(0,2)"}},
      {"DoubleWriteOfASlot",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         for (const char* task : {"LoadBatch(0,1)", "Forward(0,1)", "Backward(0,1)"}) {
           MoveSlot(own, TaskOf(own, task), -1);
         }
       },
       {"races", "rank 0", "Backward(0,0)", "Forward(0,1)", "wrote over it"}},
      {"SlotOfAnotherMicroBatch",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         LayerOf(TaskOf(own, "Backward(0,0)"), 1).base[At(Region::kSaved)] =
             LayerOf(TaskOf(own, "Forward(0,1)"), 1).base[At(Region::kSaved)];
       },
       {"races", "rank 0", "Backward(0,0)", "Forward(0,1)"}},
      {"SlotOfAnotherChunk",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         LayerOf(TaskOf(own, "Backward(1,0)"), 2).base[At(Region::kSaved)] =
             LayerOf(TaskOf(own, "Forward(0,0)"), 0).base[At(Region::kSaved)];
       },
       {"races", "rank 0", "Backward(1,0)", "Forward(0,0)"},
       2},
      {"SendBufferReusedTooEarly",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         own.tasks.push_back(Task(TaskOf(own, "Send act(0,0)")));
         std::swap(own.tasks.back(), TaskOf(own, "Send act(0,0)"));
         const Instance first = TaskOf(own, "Send act(0,1)").instances.front();
         TaskOf(own, "Send act(0,2)").instances.front().base = first.base;
         own.tasks.pop_back();
       },
       {"races", "rank 0", "Send act(0,2)", "Forward(0,1)"}},
      {"OverlappingSavedTensors",
       [](Programs& p) {
         RankProgram& own = Own(p, 2);
         OverlapSaved(OwnBlock(own, LayerOf(TaskOf(own, "Forward(0,1)"), 0)));
       },
       {"saved", "rank 2", "Backward(0,1)", "layer 0"}},
      {"OverlappingScratchTensors",
       [](Programs& p) {
         RankProgram& own = Own(p, 2);
         OverlapScratch(OwnBlock(own, LayerOf(TaskOf(own, "Backward(0,1)"), 0)));
       },
       {"races", "rank 2", "Backward(0,1)", "linear_weight_grad"}},
      {"FirstMicroBatchAccumulates",
       [](Programs& p) {
         RankProgram& own = Own(p, 2);
         LayerOf(TaskOf(own, "Backward(0,0)"), 0).block =
             LayerOf(TaskOf(own, "Backward(0,1)"), 0).block;
       },
       {"races", "rank 2", "Backward(0,0)", "adds to what no op of this step has written"}},
      {"LabelsNotLoaded",
       [](Programs& p) {
         RankProgram& own = Own(p, 6);
         const Task load = TaskOf(own, "LoadBatch(0,0)");
         EraseTask(own, "LoadBatch(0,0)");
         own.tasks.push_back(load);
       },
       {"races", "rank 6", "reads what no op has written"}},
      {"Cycle",
       [](Programs& p) {
         // Stage 0 wants the gradient of micro-batch 0 before it computes it.
         RankProgram& own = Own(p, 0);
         const Task recv = TaskOf(own, "Recv grad(0,0)");
         EraseTask(own, "Recv grad(0,0)");
         own.tasks.insert(own.tasks.begin(), recv);
         TaskOf(own, "Forward(0,0)")
             .instances.front()
             .waits.push_back(recv.instances.front().signals.front());
       },
       {"deadlock", "rank 0", "rank 4", "Recv grad(0,0)", "Send act(0,0)"}},
      {"CycleOfCollectives",
       [](Programs& p) {
         // Rank 1 reduces over the world before its buckets, the others after.
         RankProgram& own = Own(p, 1);
         const Task clip = TaskOf(own, "ClipNorm");
         EraseTask(own, "ClipNorm");
         const auto at = static_cast<std::ptrdiff_t>(TaskAt(own, "ReduceGrads(0)"));
         own.tasks.insert(own.tasks.begin() + at, clip);
       },
       {"deadlock", "rank 1", "ClipNorm", "ReduceGrads"}},
  };
}

class VerifyOrder : public ::testing::TestWithParam<Mutation> {};
TEST_P(VerifyOrder, IsRefusedByName) {
  testing::ExpectRefused(GetParam());
}

std::string NameOf(const ::testing::TestParamInfo<Mutation>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Mutations, VerifyOrder, ::testing::ValuesIn(OrderMutations()), NameOf);

}  // namespace
}  // namespace meshwright::planner
