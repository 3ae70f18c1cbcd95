// Programs: what every rank runs in one optimizer step. Shared block templates, one task list per
// class of ranks, bindings per rank. Three readers: verifier, simulator, executor.
//
// Execution model (that of CUDA streams, kept by CPU ranks too): one issuing thread walks tasks,
// instances and ops in order and appends each op to its stream. A stream runs its ops in that order.
// An op starts when it is at the head of its stream and every event it waits for has completed. An
// event is a register: waiting means waiting for the latest record issued before the wait (an event
// not yet recorded in this step refers to the record of the step before; in the first step it is
// complete). A collective or message completes on all partners together (strict rendezvous).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/ir/dtype.h"
#include "planner/ir/op.h"
#include "planner/ir/parameter_entry.h"
#include "planner/ir/plan.h"
#include "planner/ir/tensor_view.h"

namespace meshwright::planner {

enum class Phase : uint8_t { kForward, kBackward, kStep };

/// Template of one layer item, phase and variant.
struct Block {
  std::string name;  ///< e.g. "layer.0/backward/full/first"
  Phase phase = Phase::kForward;
  std::vector<TensorView> tensors;
  std::vector<Op> ops;
  int64_t saved_bytes = 0;    ///< of the item in a slot (the same for forward and backward)
  int64_t scratch_bytes = 0;  ///< extent used in Region::kScratch
  friend bool operator==(const Block&, const Block&) = default;
};

/// Whether no op of the block comes before op `index` on its stream.
bool FirstOnStream(const Block& block, size_t index);

/// A block bound to memory and to events beyond it. `waits`, for records of before the instance,
/// gate the first op of every stream; `signals` are recorded on the stream of the last op once that
/// op has completed.
struct Instance {
  int32_t block = 0;
  int64_t layer = -1;  ///< global layer index of a layer item, else -1
  std::array<int64_t, kRegionCount> base{};  ///< arena offsets in bytes
  std::vector<EventId> waits;
  std::vector<EventId> signals;
  friend bool operator==(const Instance&, const Instance&) = default;
};

enum class TaskKind : uint8_t {
  kLoadBatch,
  kCountTokens,
  kForward,
  kBackward,
  kSend,
  kRecv,
  kReduceGrads,
  kGatherParams,
  kClipNorm,
  kStep,
  kReadBack,
};
std::string ToString(TaskKind kind);

/// A labelled range of instances. One row of a trace.
struct Task {
  TaskKind kind = TaskKind::kForward;
  int32_t module = 0;
  int32_t chunk = -1;        ///< chunk of this rank (0 .. virtual_stages-1)
  int32_t micro_batch = -1;
  int32_t bucket = -1;
  bool gradient = false;     ///< of kSend and kRecv: gradient traffic, else activations
  std::vector<Instance> instances;
  friend bool operator==(const Task&, const Task&) = default;
};
/// "Forward(0,3)", "Send act(1,2)", "ReduceGrads(4)".
std::string Label(const Task& task);

/// A contiguous range of the gradient area that is reduced over data-parallel ranks as one message.
struct Bucket {
  int64_t offset = 0;    ///< elements
  int64_t elements = 0;  ///< padded: divisible by dp
  int64_t optimizer_offset = 0;  ///< bytes from the start of the optimizer area
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

enum class StreamKind : uint8_t { kCompute, kTensor, kData, kEdge };
/// "tensor", "data", "pipeline" for traffic, "compute" for the rest.
std::string TrafficName(StreamKind kind);
struct StreamInfo {
  std::string name;
  StreamKind kind = StreamKind::kCompute;
  friend bool operator==(const StreamInfo&, const StreamInfo&) = default;
};

enum class CommunicatorKind : uint8_t {
  kTensor,
  kData,
  kWorld,
  kKeyValueCopies,
  kTied,
  kEdge,  ///< two ranks, one direction, one class of traffic
};
/// What a class calls a communicator; RankBinding says which group it is on a given rank.
struct CommunicatorInfo {
  std::string name;  ///< "tp", "dp", "edge act 0>1" ...
  CommunicatorKind kind = CommunicatorKind::kTensor;
  int64_t size = 1;
  friend bool operator==(const CommunicatorInfo&, const CommunicatorInfo&) = default;
};

/// Where the areas of the arena lie, in bytes. Areas are disjoint and in this order.
struct ArenaLayout {
  int64_t parameters = 0, gradients = 0, optimizer = 0, io = 0, saved = 0, scratch = 0,
          communication = 0;  ///< start offsets
  int64_t workspace = 0;  ///< the last bytes of the scratch area, see Plan::workspace_bytes
  int64_t workspace_bytes = 0;
  int64_t slot_bytes = 0;
  int64_t slots = 0;
  int64_t size = 0;  ///< the whole arena
  MemoryBreakdown memory;  ///< bytes by class; memory.arena() == size
  friend bool operator==(const ArenaLayout&, const ArenaLayout&) = default;
};

/// The program of one class of ranks: same module and pipeline stage, and the same tensor rank
/// where tensor ranks differ (see ModulePlan::programs_per_stage).
struct RankProgram {
  int32_t module = 0;
  int64_t stage = 0;
  std::vector<Block> blocks;
  std::vector<Task> tasks;
  std::vector<StreamInfo> streams;
  std::vector<CommunicatorInfo> communicators;
  int32_t events = 0;  ///< number of event registers
  std::vector<ParameterEntry> parameters;
  std::vector<Bucket> buckets;
  ArenaLayout arena;
  friend bool operator==(const RankProgram&, const RankProgram&) = default;
};

/// A communicator as it exists: ranks in communicator order. Created in index order by everyone.
struct Group {
  std::string name;
  CommunicatorKind kind = CommunicatorKind::kTensor;
  std::vector<int32_t> ranks;
  friend bool operator==(const Group&, const Group&) = default;
};

/// What a rank binds its class's program to.
struct RankBinding {
  int32_t program = 0;  ///< class, index into Programs::programs
  int64_t tp_index = 0, cp_index = 0, ep_index = 0, dp_index = 0, pp_index = 0;
  std::vector<int32_t> groups;  ///< class-local communicator -> index into Programs::groups
  friend bool operator==(const RankBinding&, const RankBinding&) = default;
};

/// Facts of the step that kernels and executor need beside the tasks.
struct StepFacts {
  int64_t sequence = 0;
  int64_t micro_batch = 0;
  int64_t micro_batches = 0;
  int64_t global_batch = 0;
  int64_t vocab = 0;
  DTypePolicy dtypes;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  friend bool operator==(const StepFacts& a, const StepFacts& b) {
    return a.sequence == b.sequence && a.micro_batch == b.micro_batch &&
           a.micro_batches == b.micro_batches && a.global_batch == b.global_batch &&
           a.vocab == b.vocab && a.dtypes.compute == b.dtypes.compute && a.optimizer == b.optimizer;
  }
};

struct Programs {
  StepFacts facts;
  std::vector<ModulePlan> modules;  ///< grids, for coordinates
  std::vector<RankProgram> programs;
  std::vector<RankBinding> ranks;
  std::vector<Group> groups;
};

/// Hash of everything above; all ranks compare it before the first step.
uint64_t Fingerprint(const Programs& programs);

/// Text for people: blocks with ops, operands, streams, events; then tasks.
std::string DumpBlock(const Block& block);
std::string DumpProgram(const RankProgram& program);

}  // namespace meshwright::planner
