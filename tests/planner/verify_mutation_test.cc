// Lowered programs with one thing made wrong: each is refused, with ranks and task named.
#include "tests/planner/verify_mutation.h"

namespace meshwright::planner {
namespace {

using testing::At;
using testing::CommunicatorOf;
using testing::EraseTask;
using testing::LayerOf;
using testing::Mutation;
using testing::OperandOf;
using testing::OpOfKind;
using testing::Own;
using testing::OwnBlock;
using testing::ProgramOf;
using testing::TaskAt;
using testing::TaskOf;

std::vector<Mutation> MessageMutations() {
  return {
      {"SendDropped",
       [](Programs& p) { EraseTask(Own(p, 0), "Send act(0,3)"); },
       {"messages", "rank 0", "rank 4", "Recv act(0,3)"}},
      {"SendDroppedEarly",
       [](Programs& p) { EraseTask(Own(p, 0), "Send act(0,1)"); },
       {"messages", "rank 0", "rank 4", "Send act(0,2)", "Recv act(0,1)"}},
      {"RecvDropped",
       [](Programs& p) { EraseTask(Own(p, 5), "Recv act(0,3)"); },
       {"messages", "rank 1", "rank 5", "Send act(0,3)"}},
      {"OrderSwapped",
       [](Programs& p) {
         RankProgram& own = Own(p, 4);
         std::swap(TaskOf(own, "Send grad(0,1)"), TaskOf(own, "Send grad(0,2)"));
       },
       {"messages", "rank 0", "rank 4", "Send grad(0,2)", "Recv grad(0,1)"}},
      {"WrongPeer",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         OwnBlock(own, TaskOf(own, "Send act(0,0)").instances.front()).ops.front().attributes.peer =
             0;
       },
       {"messages", "rank 0", "send", "position 0", "the rank itself"}},
      {"WrongEdge",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         Block& block = OwnBlock(own, TaskOf(own, "Send act(0,2)").instances.front());
         Op& back =
             own.blocks[static_cast<size_t>(TaskOf(own, "Recv grad(0,0)").instances.front().block)]
                 .ops.front();
         block.ops.front().attributes = back.attributes;
         block.ops.front().stream = back.stream;
       },
       {"messages", "rank 0", "rank 4", "Send act(0,3)", "Recv act(0,2)"}},
      {"WrongSize",
       [](Programs& p) {
         RankProgram& own = Own(p, 4);
         Block& block = OwnBlock(own, TaskOf(own, "Recv act(0,1)").instances.front());
         block.tensors.front().shape.front() /= 2;
       },
       {"messages", "rank 0", "rank 4", "Recv act(0,1)", "512 elements", "1024"}},
      {"WrongDtype",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         Block& block = OwnBlock(own, TaskOf(own, "Send act(0,1)").instances.front());
         block.tensors.front().dtype = DType::kF64;
         block.tensors.front().shape.front() /= 4;  // as many bytes as before
         RankProgram& other = Own(p, 4);
         OwnBlock(other, TaskOf(other, "Recv act(0,1)").instances.front())
             .tensors.front()
             .shape.front() /= 4;
       },
       {"messages", "rank 0", "rank 4", "Send act(0,1)", "fp64", "bf16"}},
      {"ExtraCollective",
       [](Programs& p) {
         RankProgram& own = Own(p, 1);
         const size_t at = TaskAt(own, "ReduceGrads(0)");
         own.tasks.insert(own.tasks.begin() + static_cast<std::ptrdiff_t>(at), Task(own.tasks[at]));
       },
       {"messages", "rank 0", "rank 1", "ReduceGrads(0)"}},
      {"MissingCollective",
       [](Programs& p) { EraseTask(Own(p, 3), "GatherParams(0)"); },
       {"messages", "rank 1", "rank 3", "GatherParams(0)"}},
      {"MissingTensorCollective",
       [](Programs& p) {
         RankProgram& own = Own(p, 2);
         Block& block = OwnBlock(own, LayerOf(TaskOf(own, "Forward(0,2)"), 1));
         for (size_t i = 0; i < block.ops.size(); ++i) {
           if (block.ops[i].kind != OpKind::kReduceScatter) continue;
           block.ops.erase(block.ops.begin() + static_cast<std::ptrdiff_t>(i));
           break;
         }
       },
       {"messages", "rank 2", "rank 3", "Forward(0,2)"}},
      {"OtherCollective",
       [](Programs& p) {
         RankProgram& own = Own(p, 6);
         for (Task& task : own.tasks) {
           if (task.kind != TaskKind::kReduceGrads) continue;
           Op& op = OwnBlock(own, task.instances.front()).ops.front();
           if (op.kind != OpKind::kReduceScatter) continue;
           op.kind = OpKind::kAllReduce;
           op.operands.resize(1);
           break;
         }
       },
       {"messages", "rank 4", "rank 6", "ReduceGrads(", "reduce_scatter and all_reduce"}},
  };
}

std::vector<Mutation> GroupMutations() {
  return {
      {"WrongGroup",
       [](Programs& p) {
         const auto tp =
             static_cast<size_t>(CommunicatorOf(ProgramOf(p, 0), CommunicatorKind::kTensor));
         p.ranks[0].groups[tp] = p.ranks[2].groups[tp];
       },
       {"groups", "rank 0", "not a member"}},
      {"GroupOfOtherKind",
       [](Programs& p) {
         const auto tp =
             static_cast<size_t>(CommunicatorOf(ProgramOf(p, 0), CommunicatorKind::kTensor));
         const auto dp =
             static_cast<size_t>(CommunicatorOf(ProgramOf(p, 0), CommunicatorKind::kData));
         std::swap(p.ranks[5].groups[tp], p.ranks[5].groups[dp]);
       },
       {"groups", "rank 5", "kinds differ"}},
      {"MembersSwapped",
       [](Programs& p) {
         const auto tp =
             static_cast<size_t>(CommunicatorOf(ProgramOf(p, 6), CommunicatorKind::kTensor));
         Group& group = p.groups[static_cast<size_t>(p.ranks[6].groups[tp])];
         std::swap(group.ranks[0], group.ranks[1]);
       },
       {"groups", "rank 6", "[7, 6]", "[6, 7]"}},
      {"WrongCoordinates",
       [](Programs& p) { std::swap(p.ranks[1].tp_index, p.ranks[1].dp_index); },
       {"groups", "rank 1", "coordinates"}},
      {"CommunicatorOnTwoStreams",
       [](Programs& p) {
         RankProgram& own = Own(p, 0);
         OwnBlock(own, TaskOf(own, "Send act(0,1)").instances.front()).ops.front().stream =
             kDataStream;
       },
       {"groups", "rank 0", "is used from stream"}},
  };
}

std::vector<Mutation> StructureMutations() {
  return {
      {"WrongLayerRange",
       [](Programs& p) {
         Task& task = TaskOf(ProgramOf(p, 4), "Forward(0,1)");
         for (Instance& i : task.instances) {
           if (i.layer >= 0) --i.layer;
         }
       },
       {"layers", "rank 4", "Forward(0,1)", "layer 1", "layers 2..3"}},
      {"ChunksOverlap",
       [](Programs& p) { p.modules.front().chunks[1].first_layer = 1; },
       {"layers", "stage 1", "from 1", "end at layer 2"}},
      {"LayerDropped",
       [](Programs& p) {
         Task& task = TaskOf(Own(p, 5), "Forward(0,2)");
         task.instances.erase(task.instances.begin() + (&LayerOf(task, 3) - task.instances.data()));
       },
       {"layers", "rank 5", "Forward(0,2)", "layer 3 is dropped"}},
      {"LayerRepeated",
       [](Programs& p) {
         Task& task = TaskOf(Own(p, 0), "Backward(0,1)");
         task.instances.push_back(Instance(LayerOf(task, 0)));
       },
       {"layers", "rank 0", "Backward(0,1)", "layer 0"}},
      {"MicroBatchDropped",
       [](Programs& p) { EraseTask(Own(p, 4), "Backward(0,3)"); },
       {"layers", "rank 4", "Backward(0,3)", "missing"}},
      {"BackwardBeforeForward",
       [](Programs& p) {
         RankProgram& own = Own(p, 4);
         std::swap(TaskOf(own, "Forward(0,1)"), TaskOf(own, "Backward(0,1)"));
       },
       {"layers", "rank 4", "Backward(0,1)", "before its forward"}},
      {"WrongShape",
       [](Programs& p) {
         RankProgram& own = Own(p, 2);
         Block& block = OwnBlock(own, LayerOf(TaskOf(own, "Forward(0,1)"), 1));
         OperandOf(block, OpOfKind(block, OpKind::kLinear), "weight").shape[1] /= 2;
       },
       {"blocks", "rank 2", "Forward(0,1)", "linear", "width"}},
      {"WrongAccess",
       [](Programs& p) {
         RankProgram& own = Own(p, 2);
         Block& block = OwnBlock(own, LayerOf(TaskOf(own, "Backward(0,1)"), 1));
         OpOfKind(block, OpKind::kNormGrad).operands.front().access = Access::kWrite;
       },
       {"rank 2", "Backward(0,1)", "norm_grad", "access"}},
      {"ParametersOfAnotherLayer",
       [](Programs& p) {
         Task& task = TaskOf(Own(p, 1), "Forward(0,0)");
         LayerOf(task, 1).base[At(Region::kParameter)] =
             LayerOf(task, 0).base[At(Region::kParameter)];
       },
       {"addresses", "rank 1", "Forward(0,0)", "layer 1", "layers.0."}},
      {"OutsideTheSlot",
       [](Programs& p) {
         RankProgram& own = Own(p, 1);
         LayerOf(TaskOf(own, "Forward(0,0)"), 1).base[At(Region::kSaved)] =
             own.arena.saved + own.arena.slot_bytes - 256;
       },
       {"addresses", "rank 1", "Forward(0,0)", "slot"}},
      {"ParametersOverlap",
       [](Programs& p) { Own(p, 1).parameters[3].offset = Own(p, 1).parameters[2].offset + 1; },
       {"parameters", "rank 1"}},
      {"WrongLocalShape",
       [](Programs& p) {
         for (ParameterEntry& e : Own(p, 1).parameters) {
           if (e.axis == 0 && e.local_shape.size() == 2) e.local_shape[0] /= 2;
         }
       },
       {"parameters", "rank 1", "local shape"}},
      {"ArenaTooSmall",
       [](Programs& p) { Own(p, 7).arena.size -= 256; },
       {"memory", "rank 7", "the arena at"}},
      {"SlotsOverlapScratch",
       [](Programs& p) { Own(p, 7).arena.scratch -= 256; },
       {"memory", "rank 7", "scratch area starts"}},
  };
}

class VerifyMutation : public ::testing::TestWithParam<Mutation> {};
TEST_P(VerifyMutation, IsRefusedByName) {
  testing::ExpectRefused(GetParam());
}

std::string NameOf(const ::testing::TestParamInfo<Mutation>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Messages, VerifyMutation, ::testing::ValuesIn(MessageMutations()), NameOf);
INSTANTIATE_TEST_SUITE_P(Groups, VerifyMutation, ::testing::ValuesIn(GroupMutations()), NameOf);
INSTANTIATE_TEST_SUITE_P(Structure, VerifyMutation, ::testing::ValuesIn(StructureMutations()),
                         NameOf);

TEST(VerifyLimits, DeviceCommunicatorsAndStreamsAreBounded) {
  Programs programs = testing::Base();
  const int64_t need = ProgramOf(programs, 0).arena.memory.total();
  int64_t most = 0;
  for (const RankProgram& p : programs.programs) {
    most = std::max(most, p.arena.memory.total());
  }
  VerifyLimits limits;
  limits.device_bytes = {most};
  EXPECT_TRUE(Verify(programs, limits).ok());
  limits.device_bytes.assign(8, most);
  limits.device_bytes[2] = need - 1;
  EXPECT_THAT(Verify(programs, limits).message(), ::testing::HasSubstr("rank 2"));
  limits.device_bytes = {most, most};
  EXPECT_FALSE(Verify(programs, limits).ok());
  limits = {};
  limits.max_communicators = static_cast<int64_t>(ProgramOf(programs, 0).communicators.size());
  EXPECT_TRUE(Verify(programs, limits).ok());
  --limits.max_communicators;
  EXPECT_THAT(Verify(programs, limits).message(), ::testing::HasSubstr("communicators"));
  limits = {};
  limits.max_streams = 2;
  EXPECT_THAT(Verify(programs, limits).message(), ::testing::HasSubstr("streams"));
}

}  // namespace
}  // namespace meshwright::planner
