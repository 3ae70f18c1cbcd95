#include <algorithm>
#include <array>
#include <map>

#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

/// Stream of a node: traffic of the tensor group has its own, everything else computes.
StreamId StreamOf(const Node& node) {
  const bool beside = node.attributes.communicator == 0 || node.on_tensor_stream;
  return beside ? kTensorStream : kComputeStream;
}

/// For each op and stream, the last op of that stream known complete when the op starts (-1: none).
using Clock = std::array<int, 2>;

struct Accesses {
  std::vector<int> ops;
  int first = -1;
};

/// Orders ops across the two streams of a block and finds which waits that takes.
class Placer {
 public:
  Placer(const Graph& graph, const BlockOptions& options) : graph_(graph), options_(options) {}

  Block Run() {
    Order();
    Allocate();
    return Emit();
  }

 private:
  size_t Count() const { return graph_.nodes.size(); }

  void Order() {
    clocks_.resize(Count(), Clock{-1, -1});
    waits_.resize(Count());
    signals_.assign(Count(), -1);
    accesses_.resize(graph_.tensors.size());
    Clock last_on{-1, -1};
    for (size_t j = 0; j < Count(); ++j) {
      const Node& node = graph_.nodes[j];
      const auto stream = static_cast<size_t>(StreamOf(node));
      Clock clock{-1, -1};
      if (last_on[stream] >= 0) {
        clock = clocks_[static_cast<size_t>(last_on[stream])];
        clock[stream] = last_on[stream];
      }
      const size_t other = 1 - stream;
      int needed = -1;  // latest conflicting op of the other stream
      for (const Operand& o : node.operands) {
        if (o.tensor < 0) continue;
        for (int i : accesses_[Storage(o.tensor)].ops) {
          if (static_cast<size_t>(StreamOf(graph_.nodes[static_cast<size_t>(i)])) == other &&
              Conflicts(i, o)) {
            needed = std::max(needed, i);
          }
        }
      }
      if (needed > clock[other]) {
        waits_[j].push_back(needed);
        const Clock& seen = clocks_[static_cast<size_t>(needed)];
        clock[other] = needed;
        clock[stream] = std::max(clock[stream], seen[stream]);
      }
      clocks_[j] = clock;
      last_on[stream] = static_cast<int>(j);
      for (const Operand& o : node.operands) {
        if (o.tensor < 0) continue;
        Accesses& a = accesses_[Storage(o.tensor)];
        if (a.first < 0) a.first = static_cast<int>(j);
        if (a.ops.empty() || a.ops.back() != static_cast<int>(j))
          a.ops.push_back(static_cast<int>(j));
      }
    }
    last_ = last_on;
  }

  size_t Storage(int tensor) const { return static_cast<size_t>(graph_.tensor(tensor).storage); }

  bool Conflicts(int i, const Operand& operand) const {
    for (const Operand& o : graph_.nodes[static_cast<size_t>(i)].operands) {
      if (o.tensor >= 0 && ShareBytes(graph_, o.tensor, operand.tensor) &&
          (Writes(o.access) || Writes(operand.access))) {
        return true;
      }
    }
    return false;
  }

  bool Before(int i, int j) const {
    const auto stream = static_cast<size_t>(StreamOf(graph_.nodes[static_cast<size_t>(i)]));
    return clocks_[static_cast<size_t>(j)][stream] >= i;
  }

  /// All of `a` is over before `b` begins. What follows b's first access depends on it.
  bool Before(const Accesses& a, const Accesses& b) const {
    return std::all_of(a.ops.begin(), a.ops.end(), [&](int i) { return Before(i, b.first); });
  }

  bool NeedsScratch(size_t storage) const {
    const GraphTensor& t = graph_.tensors[storage];
    return !accesses_[storage].ops.empty() && t.role == Role::kActivation && !t.saved && !t.placed;
  }

  /// Greedy by size: the largest first, each at the lowest address free of conflicts.
  void Allocate() {
    std::vector<int64_t> bytes(graph_.tensors.size(), 0);
    for (const GraphTensor& t : graph_.tensors) {
      int64_t& b = bytes[static_cast<size_t>(t.storage)];
      b = std::max(b, t.view.offset + t.view.bytes());
    }
    std::vector<size_t> order;
    for (size_t s = 0; s < graph_.tensors.size(); ++s) {
      if (graph_.tensors[s].storage == static_cast<int>(s) && NeedsScratch(s)) order.push_back(s);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
    offset_.assign(graph_.tensors.size(), -1);
    extent_ = options_.scratch_begin;
    std::vector<size_t> placed;
    for (size_t s : order) {
      std::vector<std::pair<int64_t, int64_t>> taken;
      for (size_t p : placed) {
        if (!Before(accesses_[p], accesses_[s]) && !Before(accesses_[s], accesses_[p])) {
          taken.emplace_back(offset_[p], offset_[p] + bytes[p]);
        }
      }
      std::sort(taken.begin(), taken.end());
      int64_t at = options_.scratch_begin;
      for (const auto& [begin, end] : taken) {
        if (at + bytes[s] <= begin) break;
        at = std::max(at, RoundUp(end, kByteAlignment));
      }
      offset_[s] = at;
      extent_ = std::max(extent_, RoundUp(at + bytes[s], kByteAlignment));
      placed.push_back(s);
    }
  }

  EventId SignalOf(int op) {
    EventId& e = signals_[static_cast<size_t>(op)];
    if (e < 0) e = next_event_++;
    return e;
  }

  TensorView Placed(int id) const {
    const GraphTensor& t = graph_.tensor(id);
    TensorView v = t.view;
    if (t.placed) return v;
    const GraphTensor& s = graph_.tensors[static_cast<size_t>(t.storage)];
    if (s.saved) {
      v.region = Region::kSaved;
      v.offset += s.view.offset;
      if (id == t.storage) v.offset = s.view.offset;
      return v;
    }
    switch (s.role) {
      case Role::kInput:
        v.region = t.storage == graph_.input_delta ? Region::kIn1 : Region::kIn0;
        return v;
      case Role::kOutput:
        v.region = t.storage == graph_.output_delta ? Region::kOut1 : Region::kOut0;
        return v;
      default:
        v.region = Region::kScratch;
        v.offset += offset_[static_cast<size_t>(t.storage)];
        return v;
    }
  }

  Block Emit() {
    Block block;
    block.name = graph_.name;
    block.phase = graph_.phase;
    block.scratch_bytes = extent_;
    if (options_.tensor_stream) {
      for (size_t stream = 0; stream < 2; ++stream) {
        if (last_[stream] >= 0) {
          signals_[static_cast<size_t>(last_[stream])] = stream == 1 ? kTensorDone : kComputeDone;
        }
      }
    }
    std::map<int, int32_t> index;
    Clock begun{-1, -1};
    for (size_t j = 0; j < Count(); ++j) {
      const Node& node = graph_.nodes[j];
      Op op;
      op.kind = node.kind;
      op.stream = StreamOf(node);
      op.attributes = node.attributes;
      for (const Operand& o : node.operands) {
        if (o.tensor < 0) {
          op.operands.push_back(o);
          continue;
        }
        const auto [it, added] =
            index.emplace(o.tensor, static_cast<int32_t>(block.tensors.size()));
        if (added) block.tensors.push_back(Placed(o.tensor));
        op.operands.push_back({it->second, o.access});
      }
      for (int w : waits_[j]) op.waits.push_back(SignalOf(w));
      const auto stream = static_cast<size_t>(op.stream);
      if (options_.tensor_stream && begun[stream] < 0) {
        // Scratch and the residual stream pass from the block before.
        if (stream == 0) op.waits.push_back(kTensorDone);
        if (stream == 1 && waits_[j].empty()) op.waits.push_back(kComputeDone);
      }
      begun[stream] = static_cast<int>(j);
      block.ops.push_back(std::move(op));
    }
    for (size_t j = 0; j < Count(); ++j) block.ops[j].signal = signals_[j];
    return block;
  }

  const Graph& graph_;
  const BlockOptions options_;
  std::vector<Clock> clocks_;
  std::vector<std::vector<int>> waits_;
  std::vector<EventId> signals_;
  std::vector<Accesses> accesses_;
  std::vector<int64_t> offset_;
  int64_t extent_ = 0;
  Clock last_{-1, -1};
  EventId next_event_ = 2;
};

}  // namespace

Block PlaceAndAllocate(const Graph& graph, const BlockOptions& options) {
  return Placer(graph, options).Run();
}

int64_t AllocateSaved(Graph& forward, Graph* backward) {
  int64_t at = 0;
  for (size_t i = 0; i < forward.tensors.size(); ++i) {
    GraphTensor& t = forward.tensors[i];
    if (!t.saved) continue;
    MW_CHECK(t.storage == static_cast<int>(i));
    t.view.offset = at;
    if (backward != nullptr) backward->tensors[i].view.offset = at;
    at = RoundUp(at + t.view.bytes(), kByteAlignment);
  }
  return at;
}

}  // namespace meshwright::planner::lower
