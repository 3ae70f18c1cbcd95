#include "runtime/group_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshwright::runtime {
namespace {

using planner::CommunicatorKind;
using planner::DType;
using planner::OpKind;
using testing::ElementsAre;
using testing::IsEmpty;

planner::Op Op(OpKind kind, int32_t communicator, std::vector<int32_t> tensors) {
  planner::Op op;
  op.kind = kind;
  op.attributes.communicator = communicator;
  for (const int32_t tensor : tensors) {
    planner::Operand operand;
    operand.tensor = tensor;
    op.operands.push_back(operand);
  }
  return op;
}

planner::TensorView View(DType dtype, int64_t elements) {
  planner::TensorView view;
  view.dtype = dtype;
  view.shape = {elements};
  return view;
}

TEST(UsesOfGroups, AreThoseOfAllMembersByKindAndType) {
  planner::Programs programs;
  planner::RankProgram sends;
  sends.blocks.emplace_back();
  sends.blocks[0].tensors = {View(DType::kBf16, 100), View(DType::kF32, 10), View(DType::kF32, 40)};
  sends.blocks[0].ops = {Op(OpKind::kSend, 0, {0}), Op(OpKind::kAllReduce, 1, {1}),
                         Op(OpKind::kAllReduce, 1, {2}), Op(OpKind::kAllGather, 1, {-1, 2})};
  planner::RankProgram receives = sends;
  receives.blocks[0].ops = {Op(OpKind::kRecv, 1, {0}), Op(OpKind::kReduceScatter, 0, {2, 1})};
  programs.programs = {sends, receives};
  programs.groups = {{"pair", CommunicatorKind::kData, {0, 1}},
                     {"edge", CommunicatorKind::kEdge, {0, 1}},
                     {"idle", CommunicatorKind::kWorld, {0, 1}}};
  programs.ranks.resize(2);
  programs.ranks[0].program = 0;
  programs.ranks[0].groups = {1, 0};
  programs.ranks[1].program = 1;
  programs.ranks[1].groups = {0, 1};
  const auto uses = UsesOfGroups(programs);
  ASSERT_EQ(uses.size(), 3U);
  EXPECT_THAT(uses[0],
              testing::UnorderedElementsAre(GroupUse{OpKind::kAllReduce, DType::kF32, 160},
                                            GroupUse{OpKind::kAllGather, DType::kF32, 160},
                                            GroupUse{OpKind::kReduceScatter, DType::kF32, 160}));
  EXPECT_THAT(uses[1], ElementsAre(GroupUse{OpKind::kSend, DType::kBf16, 200}));
  EXPECT_THAT(uses[2], IsEmpty());
  const auto small = UsesOfGroups(programs, [](size_t group, const GroupUse& use) {
    EXPECT_TRUE(use.dtype == DType::kBf16 || group == 0);
    return use.bytes < 100;
  });
  EXPECT_THAT(small[0], ElementsAre(GroupUse{OpKind::kAllReduce, DType::kF32, 40}));
  EXPECT_THAT(small[1], IsEmpty());
}

TEST(SplitBatches, PutTogetherWhatSharesNoRank) {
  const std::vector<planner::Group> groups = {
      {"tp 0,1", CommunicatorKind::kTensor, {0, 1}}, {"dp 0,2", CommunicatorKind::kData, {0, 2}},
      {"dp 1,3", CommunicatorKind::kData, {1, 3}},   {"tp 2,3", CommunicatorKind::kTensor, {2, 3}},
      {"alone", CommunicatorKind::kData, {0}},       {"edge 0>1", CommunicatorKind::kEdge, {0, 1}},
      {"edge 1>2", CommunicatorKind::kEdge, {1, 2}}, {"edge 2>3", CommunicatorKind::kEdge, {2, 3}}};
  EXPECT_THAT(SplitBatches(groups),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2), ElementsAre(5, 7), ElementsAre(6)));
  EXPECT_THAT(SplitBatches({}), IsEmpty());
}

}  // namespace
}  // namespace meshwright::runtime
