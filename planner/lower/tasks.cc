// One walk over the schedule emits the whole step; it exceeds 400 lines because every piece binds
// the same memory and events, which a split would only pass around.
#include "planner/lower/tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/lower/communicators.h"
#include "planner/lower/schedule.h"

namespace meshwright::planner::lower {
namespace {

size_t Slot(Region r) {
  return static_cast<size_t>(r);
}

/// Double-buffered traffic of one edge: addresses and the events that hand buffers over.
struct EdgeBuffers {
  int64_t slots = 0;
  int64_t base = 0;  ///< arena offset of slot 0
  int64_t stride = 0;
  StreamId stream = -1;
  std::vector<EventId> ready;  ///< filled: received, or produced for sending
  std::vector<EventId> free;   ///< consumed, or sent
  int64_t used = 0;            ///< messages so far in this step

  int64_t slot() const { return used % slots; }
  int64_t address() const { return base + slot() * stride; }
};

class ProgramBuilder {
 public:
  ProgramBuilder(const Plan& plan, size_t module, int64_t stage, int64_t position)
      : plan_(plan),
        module_(plan.modules[module]),
        module_index_(module),
        stage_(BuildStage(plan, module, stage, position)),
        comms_(CommunicatorsOf(plan, module, stage)),
        steps_(StageSchedule(module_.pp, module_.virtual_stages, plan.micro_batches, stage)),
        slots_(AssignSlots(steps_, module_.virtual_stages, plan.micro_batches)),
        templates_(stage_, program_.blocks) {
    program_.module = static_cast<int32_t>(module);
    program_.stage = stage;
    program_.communicators = comms_.list;
    program_.buckets = stage_.buckets;
    next_event_ = templates_.events();
  }

  RankProgram Run() {
    LayOutSlots();
    LayOutStreamsAndEdges();
    LayOutArena();
    ListParameters();
    bucket_ready_.assign(stage_.buckets.size(), -1);
    gathered_.assign(stage_.buckets.size(), -1);
    stepped_.assign(stage_.buckets.size(), -1);
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      if (GathersParameters()) gathered_[b] = next_event_++;
    }
    if (HasHead()) CountTokens();
    EmitSchedule();
    ReduceGradients();
    FinishStep();
    program_.events = next_event_;
    return std::move(program_);
  }

 private:
  // --- facts -------------------------------------------------------------------------------------
  bool HasEmbedding() const { return stage_.items.front().kind == ItemKind::kEmbedding; }
  bool HasHead() const { return stage_.items.back().kind == ItemKind::kHead; }
  bool GathersParameters() const { return stage_.dp > 1 && stage_.sharding == Sharding::kZero1; }
  int64_t ComputeSize() const { return SizeOf(stage_.split.dtypes.compute); }
  int64_t GradientSize() const { return SizeOf(stage_.split.dtypes.gradient); }
  /// Bytes of the labels of one micro-batch; those of a step lie back to back.
  int64_t Labels() const { return plan_.sequence * plan_.micro_batch * SizeOf(DType::kI32); }

  // --- memory ------------------------------------------------------------------------------------
  void LayOutSlots() {
    std::vector<int64_t> bytes(static_cast<size_t>(module_.virtual_stages), 0);
    for (StageItem& item : stage_.items) {
      int64_t& at = bytes[static_cast<size_t>(item.chunk)];
      item.saved_offset = at;
      at += templates_.SavedBytes(item);
    }
    program_.arena.slot_bytes = *std::max_element(bytes.begin(), bytes.end());
    program_.arena.slots = slots_.slots;
  }

  void LayOutStreamsAndEdges() {
    program_.streams = {{"compute", StreamKind::kCompute},
                        {"tensor", StreamKind::kTensor},
                        {"data", StreamKind::kData}};
    for (Edge e : {Edge::kActIn, Edge::kActOut, Edge::kGradIn, Edge::kGradOut}) {
      if (comms_.Of(e) < 0) continue;
      EdgeBuffers& b = edges_[static_cast<size_t>(e)];
      const EdgeStages stages = StagesOf(e, stage_.stage, module_.pp);
      const bool wraps = stages.gradient ? stages.to > stages.from : stages.from > stages.to;
      b.slots = EdgeSlots(module_, plan_.micro_batches, wraps);
      b.stride = RoundUp(stage_.split.residual_bytes(), kByteAlignment);
      b.base = communication_;
      communication_ += b.slots * b.stride;
      b.stream = static_cast<StreamId>(program_.streams.size());
      program_.streams.push_back(
          {comms_.list[static_cast<size_t>(comms_.Of(e))].name, StreamKind::kEdge});
      for (int64_t i = 0; i < b.slots; ++i) {
        b.ready.push_back(next_event_++);
        b.free.push_back(next_event_++);
      }
    }
  }

  void LayOutArena() {
    ArenaLayout& a = program_.arena;
    int64_t at = 0;
    const auto area = [&](int64_t& begin, int64_t bytes, int64_t& used) {
      begin = at;
      used = RoundUp(bytes, kByteAlignment);
      at += used;
    };
    MemoryBreakdown& m = a.memory;
    area(a.parameters, stage_.parameter_elements * ComputeSize(), m.parameters);
    area(a.gradients, stage_.parameter_elements * GradientSize(), m.gradients);
    area(a.optimizer, stage_.optimizer_bytes, m.optimizer);
    labels_ = RoundUp(kScalarBytes, kByteAlignment);
    area(a.io, labels_ + (HasHead() ? plan_.micro_batches * Labels() : 0), m.io);
    area(a.saved, a.slots * a.slot_bytes, m.saved);
    a.workspace_bytes = RoundUp(plan_.workspace_bytes, kByteAlignment);
    const int64_t scratch = RoundUp(templates_.scratch_bytes(), kByteAlignment);
    area(a.scratch, scratch + a.workspace_bytes, m.scratch);
    a.workspace = a.scratch + scratch;
    area(a.communication, communication_, m.communication);
    m.slots = a.slots;
    a.size = at;
    for (EdgeBuffers& e : edges_) e.base += a.communication;
  }

  int64_t CarryResidual() const { return program_.arena.scratch; }
  int64_t CarryDelta() const {
    return program_.arena.scratch + RoundUp(stage_.split.residual_bytes(), kByteAlignment);
  }

  void ListParameters() {
    const std::string prefix = module_.module + ".";
    for (const StageItem& item : stage_.items) {
      if (item.kind == ItemKind::kHead && stage_.split.tied_here) continue;
      for (const ItemParameter& p : stage_.ParametersOf(item).list) {
        ParameterEntry e;
        e.name = item.layer >= 0 ? fmt::format("{}layers.{}.{}", prefix, item.layer, p.name)
                                 : prefix + p.name;
        e.layer = item.layer;
        e.global_shape = p.global_shape;
        e.local_shape = p.local_shape;
        e.axis = p.axis;
        e.parts = p.parts;
        e.offset = (p.late_area ? item.late_base : item.main_base) + p.offset;
        e.bucket = p.late_area ? stage_.late_bucket : item.bucket;
        e.late = p.late;
        e.tied_copy = p.late == LateReduction::kTied && item.kind == ItemKind::kHead;
        e.decay = p.decay;
        e.init = p.init;
        e.init_std = p.init_std;
        e.valid_rows = p.valid_rows;
        program_.parameters.push_back(std::move(e));
      }
    }
  }

  // --- small pieces
  // --------------------------------------------------------------------------------
  Instance Bind(int32_t block) const {
    Instance i;
    i.block = block;
    const ArenaLayout& a = program_.arena;
    i.base[Slot(Region::kParameter)] = i.base[Slot(Region::kParameterLate)] = a.parameters;
    i.base[Slot(Region::kGradient)] = i.base[Slot(Region::kGradientLate)] = a.gradients;
    i.base[Slot(Region::kOptimizer)] = a.optimizer;
    i.base[Slot(Region::kSaved)] = a.saved;
    i.base[Slot(Region::kScratch)] = a.scratch;
    i.base[Slot(Region::kIn0)] = i.base[Slot(Region::kOut0)] = CarryResidual();
    i.base[Slot(Region::kIn1)] = i.base[Slot(Region::kOut1)] = CarryDelta();
    i.base[Slot(Region::kIo)] = a.io + labels_;
    i.base[Slot(Region::kScalar)] = a.io;
    return i;
  }

  Instance BindItem(int32_t block, const StageItem& item, int64_t slot) const {
    Instance i = Bind(block);
    i.layer = item.layer;
    i.base[Slot(Region::kParameter)] += item.main_base * ComputeSize();
    i.base[Slot(Region::kParameterLate)] += item.late_base * ComputeSize();
    i.base[Slot(Region::kGradient)] += item.main_base * GradientSize();
    i.base[Slot(Region::kGradientLate)] += item.late_base * GradientSize();
    i.base[Slot(Region::kSaved)] = SavedAddress(item, slot);
    return i;
  }

  int64_t SavedAddress(const StageItem& item, int64_t slot) const {
    return program_.arena.saved + slot * program_.arena.slot_bytes + item.saved_offset;
  }

  /// A block of one op over one or more views, used outside the layer templates.
  int32_t OneOp(const std::string& name, OpKind kind, StreamId stream,
                const std::vector<std::pair<TensorView, Access>>& operands,
                const OpAttributes& attributes = {}) {
    Block block;
    block.name = name;
    block.phase = Phase::kStep;
    Op op;
    op.kind = kind;
    op.stream = stream;
    op.attributes = attributes;
    for (const auto& [view, access] : operands) {
      if (view.shape.empty()) {
        op.operands.push_back({-1, access});
        continue;
      }
      op.operands.push_back({static_cast<int32_t>(block.tensors.size()), access});
      block.tensors.push_back(view);
    }
    // Scratch and stream order of the compute stream pass on through register 1.
    if (stream == kComputeStream && templates_.tensor_stream()) op.signal = 1;
    block.ops.push_back(std::move(op));
    program_.blocks.push_back(std::move(block));
    return static_cast<int32_t>(program_.blocks.size()) - 1;
  }

  TensorView View(const std::string& name, DType dtype, std::vector<int64_t> shape, Region region,
                  int64_t offset = 0) const {
    return {name, dtype, std::move(shape), region, offset};
  }
  TensorView Cell(Scalar s, DType dtype, const std::string& name, int64_t count = 1) const {
    return View(name, dtype, {count}, Region::kScalar, 8 * static_cast<int64_t>(s));
  }
  TensorView Residual(Region region) const {
    return View("residual", stage_.split.dtypes.compute,
                {stage_.split.local_sequence(), plan_.micro_batch, stage_.split.module->hidden},
                region);
  }

  Task& NewTask(TaskKind kind, int32_t chunk = -1, int32_t micro_batch = -1, int32_t bucket = -1) {
    Task t;
    t.kind = kind;
    t.module = static_cast<int32_t>(module_index_);
    t.chunk = chunk;
    t.micro_batch = micro_batch;
    t.bucket = bucket;
    program_.tasks.push_back(std::move(t));
    return program_.tasks.back();
  }

  // --- tokens
  // --------------------------------------------------------------------------------------
  /// The head's stage reads all labels first, so that gradients are scaled by the global count from
  /// the start and need no pass of their own at the end.
  void CountTokens() {
    const int32_t load =
        OneOp("load labels", OpKind::kLoadLabels, kComputeStream,
              {{View("labels", DType::kI32, {plan_.sequence, plan_.micro_batch}, Region::kIo),
                Access::kWrite}});
    for (int64_t i = 0; i < plan_.micro_batches; ++i) {
      Task& t = NewTask(TaskKind::kLoadBatch, static_cast<int32_t>(module_.virtual_stages - 1),
                        static_cast<int32_t>(i));
      t.instances.push_back(Bind(load));
      t.instances.back().base[Slot(Region::kIo)] += i * Labels();
    }
    const bool reduce = comms_.data >= 0;
    const int32_t count =
        OneOp("count tokens", OpKind::kCountTokens, kComputeStream,
              {{View("labels", DType::kI32,
                     {plan_.micro_batches, plan_.sequence, plan_.micro_batch}, Region::kIo),
                Access::kRead},
               {Cell(Scalar::kTokenCount, DType::kI64, "count"), Access::kWrite}});
    const int32_t invert =
        OneOp("invert count", OpKind::kInvertCount, reduce ? kDataStream : kComputeStream,
              {{Cell(Scalar::kTokenCount, DType::kI64, "count"), Access::kRead},
               {Cell(Scalar::kInverseCount, DType::kF64, "inverse_count"), Access::kWrite}});
    Task& t = NewTask(TaskKind::kCountTokens);
    t.instances.push_back(Bind(count));
    if (reduce) {
      const EventId counted = next_event_++;
      t.instances.back().signals.push_back(counted);
      OpAttributes a;
      a.communicator = comms_.data;
      const int32_t sum =
          OneOp("sum count", OpKind::kAllReduce, kDataStream,
                {{Cell(Scalar::kTokenCount, DType::kI64, "count"), Access::kReadWrite}}, a);
      Task& task = program_.tasks.back();
      task.instances.push_back(Bind(sum));
      task.instances.back().waits.push_back(counted);
    }
    Task& task = program_.tasks.back();
    task.instances.push_back(Bind(invert));
    count_ready_ = next_event_++;
    task.instances.back().signals.push_back(count_ready_);
  }

  // --- forward and backward
  // ------------------------------------------------------------------------
  void EmitSchedule() {
    PrepareTraffic();
    PrepareBuckets();
    for (size_t i = 0; i < steps_.size(); ++i) {
      const ScheduleStep& s = steps_[i];
      if (s.forward) {
        Forward(s, slots_.slot[i]);
      } else {
        Backward(s, slots_.slot[i]);
      }
    }
  }

  void PrepareTraffic() {
    const auto message = [&](Edge e, OpKind kind) {
      if (comms_.Of(e) < 0) return -1;
      OpAttributes a;
      a.communicator = comms_.Of(e);
      a.peer = kind == OpKind::kSend ? 1 : 0;
      return OneOp(
          fmt::format("{} {}", kind == OpKind::kSend ? "send" : "recv",
                      comms_.list[static_cast<size_t>(a.communicator)].name),
          kind, edges_[static_cast<size_t>(e)].stream,
          {{Residual(Region::kOut0), kind == OpKind::kSend ? Access::kRead : Access::kWrite}}, a);
    };
    traffic_block_[static_cast<size_t>(Edge::kActIn)] = message(Edge::kActIn, OpKind::kRecv);
    traffic_block_[static_cast<size_t>(Edge::kActOut)] = message(Edge::kActOut, OpKind::kSend);
    traffic_block_[static_cast<size_t>(Edge::kGradIn)] = message(Edge::kGradIn, OpKind::kRecv);
    traffic_block_[static_cast<size_t>(Edge::kGradOut)] = message(Edge::kGradOut, OpKind::kSend);
    join_ = OneOp("join residual", OpKind::kAdd, kComputeStream,
                  {{Residual(Region::kIn0), Access::kRead},
                   {Residual(Region::kIn1), Access::kRead},
                   {Residual(Region::kOut0), Access::kWrite}});
    if (templates_.tensor_stream()) program_.blocks.back().ops.front().waits.push_back(0);
    if (HasEmbedding()) {
      load_tokens_ =
          OneOp("load tokens", OpKind::kLoadTokens, kComputeStream,
                {{View("tokens", DType::kI32, {plan_.sequence, plan_.micro_batch}, Region::kSaved),
                  Access::kWrite}});
    }
  }

  /// For each bucket the items still to finish their last micro-batch.
  void PrepareBuckets() {
    remaining_.assign(stage_.buckets.size(), 0);
    for (const StageItem& item : stage_.items) {
      if (item.bucket >= 0) ++remaining_[static_cast<size_t>(item.bucket)];
    }
  }

  /// A receive (recv = true) or send on edge `e`; returns the buffer it uses.
  void Traffic(Edge e, const ScheduleStep& s, bool recv) {
    EdgeBuffers& b = edges_[static_cast<size_t>(e)];
    const auto slot = static_cast<size_t>(b.slot());
    Task& t = NewTask(recv ? TaskKind::kRecv : TaskKind::kSend, s.chunk, s.micro_batch);
    t.gradient = e == Edge::kGradIn || e == Edge::kGradOut;
    Instance i = Bind(traffic_block_[static_cast<size_t>(e)]);
    i.base[Slot(Region::kOut0)] = b.address();
    i.waits.push_back(recv ? b.free[slot] : b.ready[slot]);
    i.signals.push_back(recv ? b.ready[slot] : b.free[slot]);
    t.instances.push_back(std::move(i));
  }

  bool FirstVirtualStage(const ScheduleStep& s) const { return stage_.stage == 0 && s.chunk == 0; }
  bool LastVirtualStage(const ScheduleStep& s) const {
    return stage_.stage == module_.pp - 1 && s.chunk == module_.virtual_stages - 1;
  }

  /// Parameters of the previous step must have been gathered before their first use.
  void WaitForParameters(const ScheduleStep& s, const StageItem& item, Instance& i) const {
    if (s.micro_batch != 0 || !GathersParameters()) return;
    if (item.bucket >= 0) i.waits.push_back(gathered_[static_cast<size_t>(item.bucket)]);
    if (stage_.late_bucket >= 0)
      i.waits.push_back(gathered_[static_cast<size_t>(stage_.late_bucket)]);
  }

  void Forward(const ScheduleStep& s, int64_t slot) {
    EdgeBuffers& in = edges_[static_cast<size_t>(Edge::kActIn)];
    EdgeBuffers& out = edges_[static_cast<size_t>(Edge::kActOut)];
    const bool receives = !FirstVirtualStage(s);
    const bool sends = !LastVirtualStage(s);
    if (receives) {
      Traffic(Edge::kActIn, s, true);
    } else {
      Task& t = NewTask(TaskKind::kLoadBatch, s.chunk, s.micro_batch);
      t.instances.push_back(BindItem(load_tokens_, stage_.items.front(), slot));
    }
    Task& t = NewTask(TaskKind::kForward, s.chunk, s.micro_batch);
    int64_t residual = receives ? in.address() : CarryResidual();
    for (const StageItem& item : stage_.items) {
      if (item.chunk != s.chunk || item.kind == ItemKind::kHead) continue;
      Instance i = BindItem(templates_.Forward(item), item, slot);
      i.base[Slot(Region::kIn0)] = residual;
      WaitForParameters(s, item, i);
      if (receives && item.first_of_chunk) {
        i.waits.push_back(in.ready[static_cast<size_t>(in.slot())]);
        i.signals.push_back(in.free[static_cast<size_t>(in.slot())]);
      }
      const int64_t saved = templates_.SavedOutput(item);
      residual = saved >= 0 ? SavedAddress(item, slot) + saved : CarryResidual();
      t.instances.push_back(std::move(i));
    }
    Instance join = Bind(join_);
    join.base[Slot(Region::kIn0)] = residual;
    if (sends) {
      join.base[Slot(Region::kOut0)] = out.address();
      join.waits.push_back(out.free[static_cast<size_t>(out.slot())]);
      join.signals.push_back(out.ready[static_cast<size_t>(out.slot())]);
    } else {
      join.base[Slot(Region::kOut0)] = SavedAddress(stage_.items.back(), slot);
    }
    t.instances.push_back(std::move(join));
    if (receives) ++in.used;
    if (sends) {
      Traffic(Edge::kActOut, s, false);
      ++out.used;
    }
  }

  void Backward(const ScheduleStep& s, int64_t slot) {
    EdgeBuffers& in = edges_[static_cast<size_t>(Edge::kGradIn)];
    EdgeBuffers& out = edges_[static_cast<size_t>(Edge::kGradOut)];
    const bool receives = !LastVirtualStage(s);
    const bool sends = !FirstVirtualStage(s);
    const bool first = s.micro_batch == 0;
    if (receives) Traffic(Edge::kGradIn, s, true);
    Task& t = NewTask(TaskKind::kBackward, s.chunk, s.micro_batch);
    bool entry = receives;  // the next instance reads the received gradient
    for (size_t k = stage_.items.size(); k-- > 0;) {
      const StageItem& item = stage_.items[k];
      if (item.chunk != s.chunk) continue;
      Instance i = BindItem(templates_.Backward(item, first), item, slot);
      if (item.kind == ItemKind::kHead) {
        i.base[Slot(Region::kIn0)] = SavedAddress(item, slot);
        i.base[Slot(Region::kIo)] += s.micro_batch * Labels();
        WaitForParameters(s, item, i);
        if (first) i.waits.push_back(count_ready_);
      }
      if (entry) {
        i.base[Slot(Region::kIn0)] = in.address();
        i.waits.push_back(in.ready[static_cast<size_t>(in.slot())]);
        i.signals.push_back(in.free[static_cast<size_t>(in.slot())]);
        entry = false;
      }
      if (sends && item.first_of_chunk) {
        i.base[Slot(Region::kOut0)] = out.address();
        i.waits.push_back(out.free[static_cast<size_t>(out.slot())]);
        i.signals.push_back(out.ready[static_cast<size_t>(out.slot())]);
      }
      if (s.micro_batch == plan_.micro_batches - 1) FinishItem(item, i);
      t.instances.push_back(std::move(i));
    }
    if (receives) ++in.used;
    if (sends) {
      Traffic(Edge::kGradOut, s, false);
      ++out.used;
    }
  }

  /// The item's gradients are complete: when it is the last of its bucket, the bucket may leave.
  void FinishItem(const StageItem& item, Instance& i) {
    if (item.bucket >= 0) {
      const auto b = static_cast<size_t>(item.bucket);
      if (--remaining_[b] == 0) {
        bucket_ready_[b] = next_event_++;
        i.signals.push_back(bucket_ready_[b]);
        ready_order_.push_back(item.bucket);
      }
    }
    if (++finished_items_ == stage_.items.size()) {
      all_ready_ = next_event_++;
      i.signals.push_back(all_ready_);
    }
  }

  // --- reductions
  // ----------------------------------------------------------------------------------
  TensorView BucketGradient(const Bucket& b) const {
    return View("bucket.grad", stage_.split.dtypes.gradient, {b.elements}, Region::kGradient,
                b.offset * GradientSize());
  }
  TensorView BucketParameter(const Bucket& b) const {
    return View("bucket.param", stage_.split.dtypes.compute, {b.elements}, Region::kParameter,
                b.offset * ComputeSize());
  }

  void ReduceGradients() {
    reduced_.assign(stage_.buckets.size(), -1);
    // Copies of key-value heads are summed before any bucket leaves.
    const EventId kv = module_.kv_copies > 1 ? ReduceKeyValueCopies() : -1;
    for (int32_t b : ready_order_) {
      if (b == stage_.tied_bucket) continue;
      ReduceBucket(b, {bucket_ready_[static_cast<size_t>(b)], kv});
    }
    if (stage_.late_bucket >= 0) {
      const EventId summed = next_event_++;
      OpAttributes a;
      a.communicator = comms_.tensor;
      const Bucket& bucket = stage_.buckets[static_cast<size_t>(stage_.late_bucket)];
      const int32_t block = OneOp("sum over tensor group", OpKind::kAllReduce, kTensorStream,
                                  {{BucketGradient(bucket), Access::kReadWrite}}, a);
      Task& t = NewTask(TaskKind::kReduceGrads, -1, -1, stage_.late_bucket);
      t.instances.push_back(Bind(block));
      t.instances.back().waits.push_back(all_ready_);
      t.instances.back().signals.push_back(summed);
      ReduceBucket(stage_.late_bucket, {summed, -1});
    }
    if (stage_.tied_bucket >= 0) ReduceTied(kv);
  }

  /// Data-parallel reduction of bucket `b` once `waits` have happened.
  void ReduceBucket(int32_t b, const std::vector<EventId>& waits) {
    const Bucket& bucket = stage_.buckets[static_cast<size_t>(b)];
    if (comms_.data < 0) {
      for (EventId e : waits) {
        if (e >= 0) norm_waits_.push_back(e);
      }
      return;
    }
    OpAttributes a;
    a.communicator = comms_.data;
    const bool scatter = stage_.sharding == Sharding::kZero1;
    std::vector<std::pair<TensorView, Access>> operands = {
        {BucketGradient(bucket), Access::kReadWrite}};
    if (scatter)
      operands.push_back({TensorView{"", DType::kF32, {}, Region::kGradient, 0}, Access::kWrite});
    const int32_t block =
        OneOp(fmt::format("reduce bucket {}", b),
              scatter ? OpKind::kReduceScatter : OpKind::kAllReduce, kDataStream, operands, a);
    Task& t = NewTask(TaskKind::kReduceGrads, -1, -1, b);
    t.instances.push_back(Bind(block));
    for (EventId e : waits) {
      if (e >= 0) t.instances.back().waits.push_back(e);
    }
    reduced_[static_cast<size_t>(b)] = next_event_++;
    t.instances.back().signals.push_back(reduced_[static_cast<size_t>(b)]);
  }

  EventId ReduceKeyValueCopies() {
    const EventId done = next_event_++;
    OpAttributes a;
    a.communicator = comms_.kv;
    std::vector<Instance> instances;
    for (const ParameterEntry& e : program_.parameters) {
      if (e.late != LateReduction::kKeyValueCopies) continue;
      // Rows behind the query part are the copied ones.
      const int64_t width = e.local_shape.size() > 1 ? e.local_shape[1] : 1;
      const int64_t query_rows = e.parts.front().extent / module_.tp;
      const int64_t rows = e.local_shape[0] - query_rows;
      const int32_t block =
          OneOp("sum key-value copies", OpKind::kAllReduce, kTensorStream,
                {{View(e.name + ".kv.grad", stage_.split.dtypes.gradient, {rows, width},
                       Region::kGradient, (e.offset + query_rows * width) * GradientSize()),
                  Access::kReadWrite}},
                a);
      instances.push_back(Bind(block));
      instances.back().layer = e.layer;
    }
    instances.front().waits.push_back(all_ready_);
    instances.back().signals.push_back(done);
    Task& t = NewTask(TaskKind::kReduceGrads, -1, -1, stage_.buckets.empty() ? -1 : 0);
    t.instances = std::move(instances);
    return done;
  }

  void ReduceTied(EventId kv) {
    const Bucket& bucket = stage_.buckets[static_cast<size_t>(stage_.tied_bucket)];
    const ParameterEntry* tied = nullptr;
    for (const ParameterEntry& e : program_.parameters) {
      if (e.late == LateReduction::kTied) tied = &e;
    }
    MW_CHECK(tied != nullptr && tied->bucket == stage_.tied_bucket && bucket.elements > 0);
    OpAttributes a;
    a.communicator = comms_.tied;
    const int32_t block = OneOp("sum tied weight", OpKind::kAllReduce, kDataStream,
                                {{View("tied.grad", stage_.split.dtypes.gradient, tied->local_shape,
                                       Region::kGradient, tied->offset * GradientSize()),
                                  Access::kReadWrite}},
                                a);
    const EventId summed = next_event_++;
    Task& t = NewTask(TaskKind::kReduceGrads, -1, -1, stage_.tied_bucket);
    t.instances.push_back(Bind(block));
    t.instances.back().waits.push_back(bucket_ready_[static_cast<size_t>(stage_.tied_bucket)]);
    t.instances.back().signals.push_back(summed);
    ReduceBucket(stage_.tied_bucket, {summed, kv});
  }

  // --- norm, step, gather
  // --------------------------------------------------------------------------
  void FinishStep() {
    ClipNorm();
    OptimizerStep();
    if (GathersParameters()) GatherParameters();
    const int32_t read =
        OneOp("read back", OpKind::kReadBack, kComputeStream,
              {{Cell(Scalar::kStatistics, DType::kF64, "statistics", 3), Access::kRead},
               {Cell(Scalar::kClipFactor, DType::kF64, "clip"), Access::kRead}});
    NewTask(TaskKind::kReadBack).instances.push_back(Bind(read));
  }

  void ClipNorm() {
    std::vector<Instance> instances;
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      OpAttributes a;
      a.bucket = static_cast<int32_t>(b);
      const int32_t block =
          OneOp(fmt::format("squared norm {}", b), OpKind::kSquaredNorm, kComputeStream,
                {{BucketGradient(stage_.buckets[b]), Access::kRead},
                 {Cell(Scalar::kStatistics, DType::kF64, "norm"),
                  b == 0 ? Access::kWrite : Access::kAccumulate}},
                a);
      instances.push_back(Bind(block));
      if (reduced_[b] >= 0) instances.back().waits.push_back(reduced_[b]);
    }
    for (EventId e : norm_waits_) instances.front().waits.push_back(e);
    const int32_t statistics =
        OneOp("step statistics", OpKind::kStepStatistics, kComputeStream,
              {{Cell(Scalar::kLossSum, DType::kF64, "loss"), Access::kRead},
               {Cell(Scalar::kTokenCount, DType::kI64, "count"), Access::kRead},
               {Cell(Scalar::kStatistics, DType::kF64, "statistics", 3), Access::kReadWrite}});
    instances.push_back(Bind(statistics));
    EventId summed = -1;
    if (comms_.world >= 0) {
      const EventId local = next_event_++;
      instances.back().signals.push_back(local);
      OpAttributes a;
      a.communicator = comms_.world;
      const int32_t block =
          OneOp("sum statistics", OpKind::kAllReduce, kDataStream,
                {{Cell(Scalar::kStatistics, DType::kF64, "statistics", 3), Access::kReadWrite}}, a);
      instances.push_back(Bind(block));
      instances.back().waits.push_back(local);
      summed = next_event_++;
      instances.back().signals.push_back(summed);
    }
    const int32_t clip =
        OneOp("clip factor", OpKind::kClipFactor, kComputeStream,
              {{Cell(Scalar::kStatistics, DType::kF64, "statistics", 3), Access::kRead},
               {Cell(Scalar::kClipFactor, DType::kF64, "clip"), Access::kWrite}});
    instances.push_back(Bind(clip));
    if (summed >= 0) instances.back().waits.push_back(summed);
    NewTask(TaskKind::kClipNorm).instances = std::move(instances);
  }

  void OptimizerStep() {
    const DTypePolicy& d = stage_.split.dtypes;
    int64_t states = stage_.optimizer == OptimizerKind::kAdamW ? 2 : 0;
    if (d.master) ++states;
    std::vector<Instance> instances;
    for (size_t b = 0; b < stage_.buckets.size(); ++b) {
      const Bucket& bucket = stage_.buckets[b];
      OpAttributes a;
      a.bucket = static_cast<int32_t>(b);
      TensorView state =
          View("bucket.state", d.moment, {}, Region::kOptimizer, bucket.optimizer_offset);
      if (states > 0) state.shape = {states, stage_.OwnedElements(bucket)};
      const int32_t block =
          OneOp(fmt::format("optimizer step {}", b), OpKind::kOptimizerStep, kComputeStream,
                {{BucketParameter(bucket), Access::kReadWrite},
                 {BucketGradient(bucket), Access::kRead},
                 {state, Access::kReadWrite},
                 {Cell(Scalar::kClipFactor, DType::kF64, "clip"), Access::kRead},
                 {Cell(Scalar::kLearningRate, DType::kF64, "learning_rate"), Access::kRead},
                 {Cell(Scalar::kStepNumber, DType::kI64, "step"), Access::kRead}},
                a);
      instances.push_back(Bind(block));
      if (GathersParameters()) {
        stepped_[b] = next_event_++;
        instances.back().signals.push_back(stepped_[b]);
      }
    }
    NewTask(TaskKind::kStep).instances = std::move(instances);
  }

  void GatherParameters() {
    // Forward order: what the next step uses first comes first.
    std::vector<int32_t> order;
    const auto once = [&](int32_t b) {
      if (b >= 0 && std::find(order.begin(), order.end(), b) == order.end()) order.push_back(b);
    };
    once(stage_.late_bucket);
    for (const StageItem& item : stage_.items) once(item.bucket);
    for (int32_t b : order) {
      OpAttributes a;
      a.communicator = comms_.data;
      const int32_t block =
          OneOp(fmt::format("gather bucket {}", b), OpKind::kAllGather, kDataStream,
                {{TensorView{"", DType::kF32, {}, Region::kParameter, 0}, Access::kRead},
                 {BucketParameter(stage_.buckets[static_cast<size_t>(b)]), Access::kReadWrite}},
                a);
      Task& t = NewTask(TaskKind::kGatherParams, -1, -1, b);
      t.instances.push_back(Bind(block));
      t.instances.back().waits.push_back(stepped_[static_cast<size_t>(b)]);
      t.instances.back().signals.push_back(gathered_[static_cast<size_t>(b)]);
    }
  }

  const Plan& plan_;
  const ModulePlan& module_;
  const size_t module_index_;
  RankProgram program_;
  Stage stage_;
  StageCommunicators comms_;
  std::vector<ScheduleStep> steps_;
  SlotAssignment slots_;
  Templates templates_;
  EventId next_event_ = 0;
  EdgeBuffers edges_[4];
  int32_t traffic_block_[4] = {-1, -1, -1, -1};
  int32_t join_ = -1;
  int32_t load_tokens_ = -1;
  int64_t communication_ = 0;
  int64_t labels_ = 0;
  EventId count_ready_ = -1;
  EventId all_ready_ = -1;
  size_t finished_items_ = 0;
  std::vector<int64_t> remaining_;
  std::vector<int32_t> ready_order_;
  std::vector<EventId> bucket_ready_, reduced_, stepped_, gathered_, norm_waits_;
};

}  // namespace

int64_t EdgeSlots(const ModulePlan& module, int64_t micro_batches, bool wraps) {
  const bool ahead = wraps && module.virtual_stages > 1;
  const int64_t slots = ahead ? 2 + InterleavingGroup(module.pp, micro_batches) - module.pp : 2;
  const int64_t chunks = ahead ? module.virtual_stages - 1 : module.virtual_stages;
  return std::min(slots, chunks * micro_batches);  // no more than there are messages in a step
}

RankProgram BuildRankProgram(const Plan& plan, size_t module, int64_t stage, int64_t position) {
  return ProgramBuilder(plan, module, stage, position).Run();
}

}  // namespace meshwright::planner::lower
