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
#include "planner/ir/model_spec.h"
#include "planner/ir/plan.h"

namespace meshwright::planner {

/// What a byte of the arena is for; also the unit of the memory breakdown.
enum class BufferClass : uint8_t {
  kParameter,
  kGradient,
  kOptimizer,
  kSaved,
  kScratch,
  kCommunication,
  kIo,
};

/// Base addresses an instance binds; a tensor view is region base + constant offset.
enum class Region : uint8_t {
  kParameter,      ///< parameters of the item whose gradients are complete within backward
  kParameterLate,  ///< parameters of the item that need a further reduction at step end
  kGradient,
  kGradientLate,
  kOptimizer,
  kSaved,    ///< area of the item in the slot of (chunk, micro-batch)
  kScratch,  ///< shared by all blocks of the rank
  kIn0,      ///< residual stream in (forward), its gradient in (backward)
  kIn1,      ///< pending addend of the residual stream (forward)
  kOut0,     ///< residual stream out (forward), its gradient out (backward)
  kOut1,     ///< pending addend out (forward)
  kIo,       ///< labels of the micro-batch
  kScalar,   ///< step scalars, see Scalar
  kCount,
};
inline constexpr size_t kRegionCount = static_cast<size_t>(Region::kCount);

/// Step scalars: 8-byte cells at the start of the io area. Types in brackets.
enum class Scalar : uint8_t {
  kTokenCount,       ///< [i64] unmasked tokens of the step, global after CountTokens
  kInverseCount,     ///< [f64] 1 / max(count, 1)
  kLossSum,          ///< [f64] sum of token losses of this rank
  kStatistics,       ///< [f64 x 3] squared gradient norm, loss sum, token count; all-reduced
  kStatistics1,
  kStatistics2,
  kClipFactor,       ///< [f64] min(1, clip / (norm + 1e-6)); 1 when clipping is off
  kLearningRate,     ///< [f64] written by the host before the step
  kStepNumber,       ///< [i64] 1-based, written by the host before the step
  kCount,
};
inline constexpr int64_t kScalarBytes = 8 * static_cast<int64_t>(Scalar::kCount);

enum class OpKind : uint8_t {
  // data
  kLoadTokens,   ///< host: token ids of one micro-batch -> [S, b] int32
  kLoadLabels,   ///< host: labels of one micro-batch -> [S, b] int32, -100 = not counted
  kCountTokens,  ///< labels [m, S, b] -> kTokenCount
  kInvertCount,  ///< kTokenCount -> kInverseCount
  // embedding
  kEmbed,          ///< tokens, W [V/t, h] -> y [S, b, h], zero rows for ids of other ranks
  kEmbedGrad,      ///< tokens, dy [S, b, h] -> W.G
  kAddPositions,   ///< y [rows, b, h] += P [position, h], in place
  kPositionsGrad,  ///< dy [rows, b, h] -> P.G [max_positions, h]
  // layer
  kNorm,            ///< (r [, delta]) -> r1 = r + delta (absent without delta), n, statistics
  kNormApply,       ///< r1, statistics -> n again (recomputation)
  kNormGrad,        ///< dn, r1, statistics, gamma, dr in -> dr out = dr in + d(norm); gamma.G [, beta.G]
  kLinear,          ///< x [rows, in], W [out, in] [, bias] -> y [rows, out], or added to it
  kLinearInputGrad,   ///< dy [rows, out], W [out, in] -> dx [rows, in], or added to it
  kLinearWeightGrad,  ///< dy [rows, out], x [rows, in] -> W.G [out, in]
  kBiasAdd,         ///< y [rows, h] += bias [h], in place
  kBiasGrad,        ///< dy [rows, n] -> bias.G [n]
  kRotary,          ///< q and k of qkv rotated in place; attributes.inverse: rotated back (gradient)
  kAttention,       ///< qkv [S, b, (q+2k)d] -> o [S, b, q d], lse [b, heads, S]; workspace
  kAttentionGrad,   ///< qkv, o, lse, do -> dqkv; workspace
  kActivation,      ///< u [rows, f or 2f] -> s [rows, f]; gated: s = act(gate) * up
  kActivationGrad,  ///< u, ds -> du over u in place [, s again]
  kAdd,             ///< a + b -> out
  kCopy,            ///< a -> out
  // head and loss
  kSoftmaxStats,       ///< logits [rows, V/t], labels -> stats [rows, 3] fp: max, sum exp, target logit
  kCrossEntropyGrad,   ///< stats of all ranks [t, rows, 3], labels; logits -> dlogits in place; loss sum
  // communication (attributes.communicator)
  kAllReduce,      ///< in place sum
  kAllGather,      ///< in [n] -> out [ranks * n], rank order; in may be the own slice of out
  kReduceScatter,  ///< in [ranks * n] -> out [n]; out may be the own slice of in
  kSwap,           ///< of two ranks: the other's in [n] -> out [n]
  kSend,
  kRecv,
  // step
  kSquaredNorm,    ///< gradients of bucket -> adds the owned, counted-once part to kStatistics
  kStepStatistics, ///< loss sum and token count -> kStatistics1/2 on the ranks that report them
  kClipFactor,     ///< kStatistics -> kClipFactor
  kOptimizerStep,  ///< parameters, gradients, moments of bucket (own shard)
  kReadBack,       ///< host: scalars to the run summary
  kCount,
};
inline constexpr size_t kOpKindCount = static_cast<size_t>(OpKind::kCount);
std::string ToString(OpKind kind);

using StreamId = int16_t;  ///< index into RankProgram::streams
using EventId = int32_t;   ///< event register of a rank; -1: none
inline constexpr StreamId kComputeStream = 0;
inline constexpr StreamId kTensorStream = 1;
inline constexpr StreamId kDataStream = 2;

enum class Access : uint8_t {
  kRead,
  kWrite,       ///< overwritten, not read
  kAccumulate,  ///< read, added to, written
  kReadWrite,   ///< in place
};

/// A view of memory inside a block: region base + offset. Shapes are local to the rank.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Region region = Region::kScratch;
  int64_t offset = 0;  ///< bytes from the base of the region
  friend bool operator==(const TensorView&, const TensorView&) = default;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  int64_t bytes() const { return elements() * SizeOf(dtype); }
};

struct Operand {
  int32_t tensor = 0;  ///< index into Block::tensors
  Access access = Access::kRead;
  friend bool operator==(const Operand&, const Operand&) = default;
};

/// Parameters of an op; which ones a kind reads stands at its row in op_schema.cc.
struct OpAttributes {
  bool inverse = false;     ///< kRotary
  bool has_delta = false;   ///< kNorm
  bool gated = false;
  bool causal = true;
  bool one_plus = false;    ///< norm weight is w - 1
  NormKind norm = NormKind::kRmsNorm;
  Activation activation = Activation::kGeluTanh;
  double eps = 0.0;
  double scale = 1.0;       ///< attention score scale
  double rope_theta = 0.0;
  int64_t sequence = 0;     ///< S
  int64_t batch = 0;        ///< b
  int64_t heads = 0;        ///< local query heads
  int64_t kv_heads = 0;     ///< local key-value heads
  int64_t head_dim = 0;
  int64_t window = 0;       ///< 0: none
  int64_t vocab = 0;        ///< true vocabulary; columns beyond it are masked
  int64_t row_begin = 0;    ///< first row of a row chunk (chunked head)
  int32_t bucket = -1;      ///< kSquaredNorm, kOptimizerStep
  int32_t communicator = -1;  ///< class-local communicator index
  int32_t peer = -1;          ///< kSend, kRecv: position of the partner in the communicator
  bool sequence_sharded = false;  ///< rows are this tensor rank's slice of the sequence
  friend bool operator==(const OpAttributes&, const OpAttributes&) = default;
};

struct Op {
  OpKind kind = OpKind::kCopy;
  StreamId stream = kComputeStream;
  std::vector<EventId> waits;
  EventId signal = -1;
  std::vector<Operand> operands;  ///< order fixed by the kind, see op_schema.h
  OpAttributes attributes;
  friend bool operator==(const Op&, const Op&) = default;
};

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

/// A block bound to memory and to events beyond it. `waits` gate the first op, `signals` are
/// recorded on the stream of the last op once that op has completed.
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

/// How one fused part of a parameter is cut over tensor ranks: `extent` global rows (of the cut
/// axis) in tp / copies equal pieces, rank i holding piece i / copies.
struct ParameterPart {
  int64_t extent = 0;
  int64_t copies = 1;
  friend bool operator==(const ParameterPart&, const ParameterPart&) = default;
};

/// Why a gradient is reduced beyond data parallelism at step end, and who counts it in the norm.
enum class LateReduction : uint8_t {
  kNone,
  kTensorPartial,  ///< sum over the tensor group (replicated parameters under sequence parallelism)
  kKeyValueCopies,  ///< sum over the ranks that hold copies of the same key-value head
  kTied,            ///< sum over first and last stage
};

enum class InitKind : uint8_t { kNormal, kZeros, kOnes };

/// One parameter tensor of a rank class. Offsets are elements from the start of the parameter area;
/// the gradient has the same element offset in the gradient area.
struct ParameterEntry {
  std::string name;   ///< globally unique, e.g. "language.layers.3.attention.qkv.weight"
  int64_t layer = -1;
  std::vector<int64_t> global_shape;  ///< unsharded, vocabulary padded
  std::vector<int64_t> local_shape;
  int32_t axis = -1;  ///< cut axis; -1: replicated over tensor ranks
  std::vector<ParameterPart> parts;  ///< along `axis`, in order
  int64_t offset = 0;
  int32_t bucket = 0;
  LateReduction late = LateReduction::kNone;
  bool tied_copy = false;  ///< the last stage's copy of a tied embedding: not counted in the norm
  bool decay = true;
  InitKind init = InitKind::kNormal;
  double init_std = 0.0;
  int64_t valid_rows = 0;  ///< rows of axis 0 beyond this are padding (0: none)
  friend bool operator==(const ParameterEntry&, const ParameterEntry&) = default;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : local_shape) n *= d;
    return n;
  }
};

/// A run of consecutive local indices along the cut axis and where it lies globally.
struct ShardSegment {
  int64_t local_begin = 0;
  int64_t global_begin = 0;
  int64_t length = 0;
  bool owner = true;  ///< false on copies of a part that another rank counts
};
/// Segments of `entry` on tensor rank `tp_index` of `tp`; one segment over everything if replicated.
std::vector<ShardSegment> SegmentsOf(const ParameterEntry& entry, int64_t tp_index, int64_t tp);

/// A contiguous range of the gradient area that is reduced over data-parallel ranks as one message.
struct Bucket {
  int64_t offset = 0;    ///< elements
  int64_t elements = 0;  ///< padded: divisible by dp
  int64_t optimizer_offset = 0;  ///< bytes from the start of the optimizer area
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

enum class StreamKind : uint8_t { kCompute, kTensor, kData, kEdge };
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
