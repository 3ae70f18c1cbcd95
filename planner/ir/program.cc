#include "planner/ir/program.h"

#include <fmt/format.h>

#include "planner/ir/hash.h"
#include "planner/ir/op_schema.h"

namespace meshwright::planner {
namespace {

const char* Name(Region region) {
  static constexpr std::array<const char*, kRegionCount> names = {
      "param", "param_late", "grad", "grad_late", "opt", "saved", "scratch",
      "in0",   "in1",        "out0", "out1",      "io",  "scalar"};
  return names[static_cast<size_t>(region)];
}

const char* Name(Access access) {
  switch (access) {
    case Access::kRead:
      return "";
    case Access::kWrite:
      return "=";
    case Access::kAccumulate:
      return "+=";
    case Access::kReadWrite:
      return "!";
  }
  return "?";
}

void HashOp(Hasher& h, const Op& op) {
  h.Add(static_cast<int64_t>(op.kind)).Add(int64_t{op.stream}).Add(int64_t{op.signal});
  for (EventId e : op.waits) h.Add(int64_t{e});
  for (const Operand& o : op.operands) h.Add(int64_t{o.tensor}).Add(static_cast<int64_t>(o.access));
  const OpAttributes& a = op.attributes;
  for (int64_t v : {a.sequence, a.batch, a.heads, a.kv_heads, a.head_dim, a.window, a.vocab,
                    a.row_begin, int64_t{a.bucket}, int64_t{a.communicator}, int64_t{a.peer},
                    int64_t{a.inverse}, int64_t{a.has_delta}, int64_t{a.gated}, int64_t{a.causal},
                    int64_t{a.one_plus}, int64_t{a.sequence_sharded}, static_cast<int64_t>(a.norm),
                    static_cast<int64_t>(a.activation)}) {
    h.Add(v);
  }
  h.Add(a.eps).Add(a.scale).Add(a.rope_theta);
}

void HashProgram(Hasher& h, const RankProgram& p) {
  for (const Block& b : p.blocks) {
    h.Add(b.name);
    for (const TensorView& t : b.tensors) {
      h.Add(static_cast<int64_t>(t.dtype)).Add(static_cast<int64_t>(t.region)).Add(t.offset);
      for (int64_t d : t.shape) h.Add(d);
    }
    for (const Op& op : b.ops) HashOp(h, op);
  }
  for (const Task& t : p.tasks) {
    h.Add(static_cast<int64_t>(t.kind)).Add(int64_t{t.chunk}).Add(int64_t{t.micro_batch});
    for (const Instance& i : t.instances) {
      h.Add(int64_t{i.block}).Add(i.layer);
      for (int64_t base : i.base) h.Add(base);
      for (EventId e : i.waits) h.Add(int64_t{e});
      for (EventId e : i.signals) h.Add(int64_t{e});
    }
  }
  for (const ParameterEntry& e : p.parameters) h.Add(e.name).Add(e.offset).Add(int64_t{e.bucket});
  for (const Bucket& b : p.buckets) h.Add(b.offset).Add(b.elements).Add(b.optimizer_offset);
  for (const StreamInfo& s : p.streams) h.Add(s.name).Add(static_cast<int64_t>(s.kind));
  for (const CommunicatorInfo& c : p.communicators) h.Add(c.name).Add(c.size);
  h.Add(p.arena.size).Add(int64_t{p.events});
}

}  // namespace

std::string TrafficName(StreamKind traffic) {
  switch (traffic) {
    case StreamKind::kTensor:
      return "tensor";
    case StreamKind::kData:
      return "data";
    case StreamKind::kEdge:
      return "pipeline";
    case StreamKind::kCompute:
      break;
  }
  return "compute";
}

bool FirstOnStream(const Block& block, size_t index) {
  const StreamId stream = block.ops[index].stream;
  for (size_t i = 0; i < index; ++i) {
    if (block.ops[i].stream == stream) return false;
  }
  return true;
}

std::string ToString(TaskKind kind) {
  static constexpr std::array<const char*, 11> names = {
      "LoadBatch",   "CountTokens",  "Forward",  "Backward", "Send",    "Recv",
      "ReduceGrads", "GatherParams", "ClipNorm", "Step",     "ReadBack"};
  return names[static_cast<size_t>(kind)];
}

std::string Label(const Task& task) {
  std::string name = ToString(task.kind);
  if (task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv) {
    name += task.gradient ? " grad" : " act";
  }
  if (task.bucket >= 0) return fmt::format("{}({})", name, task.bucket);
  if (task.micro_batch >= 0) return fmt::format("{}({},{})", name, task.chunk, task.micro_batch);
  return name;
}

uint64_t Fingerprint(const Programs& programs) {
  Hasher h;
  const StepFacts& f = programs.facts;
  for (int64_t v : {f.sequence, f.micro_batch, f.micro_batches, f.global_batch, f.vocab,
                    static_cast<int64_t>(f.dtypes.compute), static_cast<int64_t>(f.optimizer)}) {
    h.Add(v);
  }
  for (const RankProgram& p : programs.programs) HashProgram(h, p);
  for (const RankBinding& r : programs.ranks) {
    h.Add(int64_t{r.program}).Add(r.tp_index).Add(r.dp_index).Add(r.pp_index);
    for (int32_t g : r.groups) h.Add(int64_t{g});
  }
  for (const Group& g : programs.groups) {
    for (int32_t r : g.ranks) h.Add(int64_t{r});
  }
  return h.value();
}

std::string DumpBlock(const Block& block) {
  std::string out = fmt::format("block {}  saved {} B, scratch {} B\n", block.name,
                                block.saved_bytes, block.scratch_bytes);
  for (const Op& op : block.ops) {
    const OpRow& row = RowOf(op.kind);
    out += fmt::format("  @{} {:<20}", op.stream, row.name);
    for (EventId e : op.waits) out += fmt::format(" e{}->", e);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Operand& o = op.operands[i];
      if (o.tensor < 0) continue;
      const TensorView& t = block.tensors[static_cast<size_t>(o.tensor)];
      out += fmt::format(" {}{}:{}[{}]{}@{}+{}", row.operands[i].name, Name(o.access), t.name,
                         fmt::join(t.shape, ","), ToString(t.dtype), Name(t.region), t.offset);
    }
    if (op.signal >= 0) out += fmt::format(" ->e{}", op.signal);
    out += "\n";
  }
  return out;
}

std::string DumpProgram(const RankProgram& program) {
  std::string out =
      fmt::format("program of module {} stage {}: {} blocks, {} tasks, {} events\n", program.module,
                  program.stage, program.blocks.size(), program.tasks.size(), program.events);
  for (const Block& b : program.blocks) out += DumpBlock(b);
  for (const Task& t : program.tasks) {
    out += fmt::format("task {}\n", Label(t));
    for (const Instance& i : t.instances) {
      out += fmt::format("    {}", program.blocks[static_cast<size_t>(i.block)].name);
      if (i.layer >= 0) out += fmt::format(" layer {}", i.layer);
      if (!i.waits.empty()) out += fmt::format(" waits [{}]", fmt::join(i.waits, ","));
      if (!i.signals.empty()) out += fmt::format(" signals [{}]", fmt::join(i.signals, ","));
      out += "\n";
    }
  }
  return out;
}

}  // namespace meshwright::planner
