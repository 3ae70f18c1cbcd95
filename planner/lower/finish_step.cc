#include <fmt/format.h>

#include <algorithm>

#include "planner/lower/step_parts.h"

namespace meshwright::planner::lower {
namespace {

TensorView Statistics() {
  return ScalarView(Scalar::kStatistics, DType::kF64, "statistics", 3);
}
TensorView Clip() {
  return ScalarView(Scalar::kClipFactor, DType::kF64, "clip");
}

/// Squared norms of this rank's part of all buckets, with the loss and the token count beside them.
std::vector<Instance> LocalStatistics(ProgramBuilder& builder, const ReducedGradients& reduced) {
  const std::vector<Bucket>& buckets = builder.stage().buckets;
  const TensorView norm = ScalarView(Scalar::kStatistics, DType::kF64, "norm");
  std::vector<Instance> instances;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const int32_t block =
        builder.OneOp(fmt::format("squared norm {}", b), OpKind::kSquaredNorm, kComputeStream,
                      {{builder.BucketGradient(buckets[b]), Access::kRead},
                       {norm, b == 0 ? Access::kWrite : Access::kAccumulate}},
                      {.bucket = static_cast<int32_t>(b)});
    instances.push_back(builder.Bind(block));
    if (reduced.bucket[b] >= 0) instances.back().waits.push_back(reduced.bucket[b]);
  }
  for (EventId e : reduced.others) instances.front().waits.push_back(e);
  const int32_t statistics =
      builder.OneOp("step statistics", OpKind::kStepStatistics, kComputeStream,
                    {{ScalarView(Scalar::kLossSum, DType::kF64, "loss"), Access::kRead},
                     {ScalarView(Scalar::kTokenCount, DType::kI64, "count"), Access::kRead},
                     {Statistics(), Access::kReadWrite}});
  instances.push_back(builder.Bind(statistics));
  return instances;
}

void ClipNorm(ProgramBuilder& builder, const ReducedGradients& reduced) {
  std::vector<Instance> instances = LocalStatistics(builder, reduced);
  EventId summed = -1;
  if (const int32_t world = builder.communicators().world; world >= 0) {
    const EventId local = builder.NewEvent();
    instances.back().signals.push_back(local);
    const int32_t block =
        builder.OneOp("sum statistics", OpKind::kAllReduce, kDataStream,
                      {{Statistics(), Access::kReadWrite}}, {.communicator = world});
    instances.push_back(builder.Bind(block));
    instances.back().waits.push_back(local);
    summed = builder.NewEvent();
    instances.back().signals.push_back(summed);
  }
  const int32_t clip = builder.OneOp("clip factor", OpKind::kClipFactor, kComputeStream,
                                     {{Statistics(), Access::kRead}, {Clip(), Access::kWrite}});
  instances.push_back(builder.Bind(clip));
  if (summed >= 0) instances.back().waits.push_back(summed);
  builder.NewTask(TaskKind::kClipNorm).instances = std::move(instances);
}

/// Returns, by bucket, when its parameters are stepped; -1 where nobody gathers them.
std::vector<EventId> OptimizerStep(ProgramBuilder& builder) {
  const Stage& stage = builder.stage();
  std::vector<EventId> stepped(stage.buckets.size(), -1);
  std::vector<Instance> instances;
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const Bucket& bucket = stage.buckets[b];
    TensorView state = {
        "bucket.state", stage.split.dtypes.moment, {}, Region::kOptimizer, bucket.optimizer_offset};
    if (const int64_t states = stage.OptimizerStates(); states > 0) {
      state.shape = {states, stage.OwnedElements(bucket)};
    }
    const int32_t block = builder.OneOp(
        fmt::format("optimizer step {}", b), OpKind::kOptimizerStep, kComputeStream,
        {{builder.BucketParameter(bucket), Access::kReadWrite},
         {builder.BucketGradient(bucket), Access::kRead},
         {state, Access::kReadWrite},
         {Clip(), Access::kRead},
         {ScalarView(Scalar::kLearningRate, DType::kF64, "learning_rate"), Access::kRead},
         {ScalarView(Scalar::kStepNumber, DType::kI64, "step"), Access::kRead}},
        {.bucket = static_cast<int32_t>(b)});
    instances.push_back(builder.Bind(block));
    if (builder.GathersParameters()) {
      stepped[b] = builder.NewEvent();
      instances.back().signals.push_back(stepped[b]);
    }
  }
  builder.NewTask(TaskKind::kStep).instances = std::move(instances);
  return stepped;
}

void GatherParameters(ProgramBuilder& builder, const std::vector<EventId>& stepped,
                      const std::vector<EventId>& gathered) {
  // Forward order: what the next step uses first comes first.
  std::vector<int32_t> order;
  const auto once = [&](int32_t b) {
    if (b >= 0 && std::find(order.begin(), order.end(), b) == order.end()) order.push_back(b);
  };
  once(builder.stage().late_bucket);
  for (const StageItem& item : builder.stage().items) once(item.bucket);
  for (int32_t b : order) {
    const int32_t block =
        builder.OneOp(fmt::format("gather bucket {}", b), OpKind::kAllGather, kDataStream,
                      {{TensorView{}, Access::kRead},  // in place
                       {builder.BucketParameter(builder.bucket(b)), Access::kReadWrite}},
                      {.communicator = builder.communicators().data});
    Task& t = builder.NewTask(TaskKind::kGatherParams, -1, -1, b);
    t.instances.push_back(builder.Bind(block));
    t.instances.back().waits.push_back(stepped[static_cast<size_t>(b)]);
    t.instances.back().signals.push_back(gathered[static_cast<size_t>(b)]);
  }
}

void ReadBack(ProgramBuilder& builder) {
  const int32_t read = builder.OneOp("read back", OpKind::kReadBack, kComputeStream,
                                     {{Statistics(), Access::kRead}, {Clip(), Access::kRead}});
  builder.NewTask(TaskKind::kReadBack).instances.push_back(builder.Bind(read));
}

}  // namespace

void FinishStep(ProgramBuilder& builder, const ReducedGradients& reduced,
                const std::vector<EventId>& gathered) {
  ClipNorm(builder, reduced);
  const std::vector<EventId> stepped = OptimizerStep(builder);
  if (builder.GathersParameters()) GatherParameters(builder, stepped, gathered);
  ReadBack(builder);
}

}  // namespace meshwright::planner::lower
