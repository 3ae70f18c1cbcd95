#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "planner/lower/passes.h"

namespace meshwright::planner::lower {
namespace {

/// A product over rows: which operands are cut with them.
struct RowOperands {
  size_t in = 0;
  size_t out = 0;
};
std::optional<RowOperands> RowOperandsOf(const Node& node) {
  if (node.kind == OpKind::kLinear) return RowOperands{0, 3};
  if (node.kind == OpKind::kLinearInputGrad) return RowOperands{0, 2};
  return std::nullopt;
}

/// Rewrites the gathers before products and the scatters behind them into shifts of slices around
/// the ring of tensor ranks.
class SliceOverlapper {
 public:
  SliceOverlapper(Graph& graph, const SplitFacts& split)
      : graph_(graph),
        nodes_(std::exchange(graph.nodes, {})),
        own_(split.tensor_position),
        ranks_(split.tp),
        chunks_(split.tensor_chunks / split.tp) {}

  void Run() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].kind == OpKind::kAllGather) FindConsumer(i);
      if (nodes_[i].kind == OpKind::kReduceScatter) FindProducer(i);
    }
    for (auto& [i, gather] : gathers_) {
      FindCover(i, gather);
      FindNorm(i, gather);
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (const auto gather = gathers_.find(i); gather != gathers_.end()) {
        EmitGather(nodes_[i], gather->second);
        if (gather->second.cover >= 0) {
          graph_.nodes.push_back(nodes_[static_cast<size_t>(gather->second.cover)]);
        }
      } else if (moved_.contains(i)) {
        continue;
      } else if (nodes_[i].kind == OpKind::kAllGather) {
        Prefetch(nodes_[i]);
      } else if (const auto consumer = consumers_.find(i); consumer != consumers_.end()) {
        EmitConsumer(nodes_[i], gathers_.at(consumer->second));
      } else if (const auto producer = producers_.find(i); producer != producers_.end()) {
        EmitProducer(nodes_[i], scatters_.at(producer->second));
      } else if (const auto scatter = scatters_.find(i); scatter != scatters_.end()) {
        EmitSum(scatter->second);
      } else {
        graph_.nodes.push_back(WithParts(i));
      }
    }
    for (const auto& [i, scatter] : scatters_) CoverScatter(scatter);
  }

 private:
  struct Gather {
    int own = -1;  ///< the rank's slice, before it is gathered
    std::vector<int>
        others{};         ///< those of the ranks before it, nearest first, once they have come
    bool shared = false;  ///< the whole is read elsewhere, too
    int64_t cover = -1;   ///< a product that goes beside the shift, by its index; -1: none
    int64_t norm = -1;    ///< the norm right before that makes `own`, by its index; -1: none
  };
  struct Scatter {
    int own = -1;          ///< this rank's part of the sum of its own slice; -1: in the product
    int received = -1;     ///< the sum of the other ranks' parts of it
    int sum = -1;          ///< output of the reduce-scatter
    bool in_norm = false;  ///< a norm adds the two parts
  };

  static int Tensor(const Node& node, size_t operand) { return node.operands[operand].tensor; }

  /// Nodes that touch the tensor, by their index.
  std::vector<size_t> Users(int tensor) const {
    std::vector<size_t> users;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Operand& o : nodes_[i].operands) {
        if (o.tensor == tensor && (users.empty() || users.back() != i)) users.push_back(i);
      }
    }
    return users;
  }

  bool CanSlice(int tensor) const {
    const TensorView& view = graph_.tensor(tensor).view;
    return view.shape.size() > 1 && view.shape[0] % (ranks_ * chunks_) == 0;
  }

  /// The first product over what the all-gather at `i` makes.
  void FindConsumer(size_t i) {
    if (nodes_[i].attributes.communicator != 0) return;
    const int whole = Tensor(nodes_[i], 1);
    const std::vector<size_t> users = Users(whole);
    for (const size_t j : users) {
      const auto rows = RowOperandsOf(nodes_[j]);
      if (j < i || !rows || Tensor(nodes_[j], rows->in) != whole) continue;
      if (!CanSlice(whole) || !CanSlice(Tensor(nodes_[j], rows->out))) return;
      consumers_[j] = i;
      gathers_[i] = {Tensor(nodes_[i], 0), {}, users.size() > 2};
      return;
    }
  }

  /// The product whose output the reduce-scatter at `i` sums, when nothing else reads that.
  void FindProducer(size_t i) {
    if (nodes_[i].attributes.communicator != 0) return;
    const int whole = Tensor(nodes_[i], 0);
    const std::vector<size_t> users = Users(whole);
    if (users.size() != 2 || !CanSlice(whole) || consumers_.contains(users.front())) return;
    const Node& product = nodes_[users.front()];
    const auto rows = RowOperandsOf(product);
    if (!rows || Tensor(product, rows->out) != whole || !CanSlice(Tensor(product, rows->in))) {
      return;
    }
    producers_[users.front()] = i;
    scatters_[i].sum = Tensor(nodes_[i], 1);
    FindAddingNorm(i);
  }

  /// The norm that alone reads the sum, as what it adds to its rows.
  void FindAddingNorm(size_t i) {
    Scatter& scatter = scatters_[i];
    const GraphTensor& sum = graph_.tensor(scatter.sum);
    const std::vector<size_t> users = Users(scatter.sum);
    if (users.size() != 2 || sum.saved || sum.placed) return;
    const Node& norm = nodes_[users.back()];
    if (norm.kind != OpKind::kNorm || Tensor(norm, 1) != scatter.sum) return;
    scatter.in_norm = true;
    adding_norms_[users.back()] = i;
  }

  /// Node `i`; a norm that adds both parts of a sum over the ranks, with those.
  Node WithParts(size_t i) const {
    Node node = nodes_[i];
    if (const auto norm = adding_norms_.find(i); norm != adding_norms_.end()) {
      const Scatter& scatter = scatters_.at(norm->second);
      node.operands[1] = Read(scatter.own);
      node.operands[7] = Read(scatter.received);
    }
    return node;
  }

  /// The last weight gradient in front of the gather at `i` depends on nothing that comes between
  /// and goes beside its shift instead: nothing else is there that needs neither.
  void FindCover(size_t i, Gather& gather) {
    for (size_t w = i; w-- > 0;) {
      if (gathers_.contains(w)) return;
      if (nodes_[w].kind != OpKind::kLinearWeightGrad) continue;
      for (size_t k = w + 1; k < i; ++k) {
        if (Touches(nodes_[k], nodes_[w])) return;
      }
      gather.cover = static_cast<int64_t>(w);
      moved_.insert(w);
      return;
    }
  }

  /// A norm's first rows leave while it makes the others.
  void FindNorm(size_t i, Gather& gather) {
    if (chunks_ == 1 || i == 0 || !CanCutNorm(graph_, nodes_[i - 1], chunks_)) return;
    if (Tensor(nodes_[i - 1], 5) != gather.own) return;
    gather.norm = static_cast<int64_t>(i) - 1;
    moved_.insert(i - 1);
  }

  /// `later` changes what `earlier` uses, or uses what that changes.
  bool Touches(const Node& later, const Node& earlier) const {
    for (const Operand& a : later.operands) {
      for (const Operand& b : earlier.operands) {
        if (a.tensor >= 0 && b.tensor >= 0 && (Writes(a.access) || Writes(b.access)) &&
            ShareBytes(graph_, a.tensor, b.tensor)) {
          return true;
        }
      }
    }
    return false;
  }

  /// A gather that no product waits for at once goes right behind the last shift for a product, to
  /// be done when it is needed; with the pass over rows that makes what it gathers, if there is
  /// one.
  void Prefetch(const Node& gather) {
    auto& nodes = graph_.nodes;
    if (prefetch_at_ == 0) {
      nodes.push_back(gather);
      return;
    }
    size_t moved = 0;  // nodes at the end that go along
    if (nodes.size() > prefetch_at_ && nodes.back().kind == OpKind::kNormApply &&
        Tensor(nodes.back(), 4) == Tensor(gather, 0)) {
      moved = 1;
    }
    nodes.push_back(gather);
    ++moved;
    const auto end = static_cast<std::ptrdiff_t>(nodes.size() - moved);
    for (std::ptrdiff_t k = end; k-- > static_cast<std::ptrdiff_t>(prefetch_at_);) {
      for (size_t m = 0; m < moved; ++m) {
        if (Touches(nodes[static_cast<size_t>(end) + m], nodes[static_cast<size_t>(k)])) return;
      }
    }
    std::rotate(nodes.begin() + static_cast<std::ptrdiff_t>(prefetch_at_), nodes.begin() + end,
                nodes.end());
  }

  void EmitGather(const Node& node, Gather& gather) {
    const int whole = Tensor(node, 1);
    for (int64_t hop = 1; hop < ranks_; ++hop) {
      gather.others.push_back(gather.shared ? Slice(whole, hop) : New(whole, ".other"));
    }
    const size_t begin = graph_.nodes.size();
    for (int64_t c = 0; c < chunks_; ++c) {
      if (gather.norm >= 0) EmitNorm(WithParts(static_cast<size_t>(gather.norm)), c);
      EmitShift(ChunkOf(gather.own, c), ChunkOf(gather.others[0], c), node.attributes);
    }
    if (gather.norm >= 0) Advance(begin);
    for (size_t hop = 1; hop < gather.others.size(); ++hop) {  // what has come goes on
      for (int64_t c = 0; c < chunks_; ++c) {
        EmitShift(ChunkOf(gather.others[hop - 1], c), ChunkOf(gather.others[hop], c),
                  node.attributes);
      }
    }
    prefetch_at_ = graph_.nodes.size();
    if (!gather.shared) return;
    Node copy{OpKind::kCopy, {Read(gather.own), Write(Slice(whole, 0))}, {}, Cut::kNone, true};
    graph_.nodes.push_back(std::move(copy));
    prefetch_at_ = graph_.nodes.size();
  }

  void EmitNorm(Node norm, int64_t c) {
    for (const size_t operand : kNormRows) {
      int& tensor = norm.operands[operand].tensor;
      if (tensor >= 0) tensor = RowChunk(graph_, tensor, c, chunks_);
    }
    graph_.nodes.push_back(std::move(norm));
  }

  /// The norm of the first rows and their shift, at `at`, go before products over later rows.
  void Advance(size_t at) {
    auto& nodes = graph_.nodes;
    size_t to = at;
    while (to > 0 && nodes[to - 1].kind == OpKind::kLinear && !Touches(nodes[at], nodes[to - 1]) &&
           !Touches(nodes[at + 1], nodes[to - 1])) {
      --to;
    }
    const auto begin = nodes.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(at),
                begin + static_cast<std::ptrdiff_t>(at) + 2);
  }

  /// The rank's own rows first: they have been there from the start.
  void EmitConsumer(const Node& node, const Gather& gather) {
    const RowOperands rows = *RowOperandsOf(node);
    const int out = Tensor(node, rows.out);
    Emit(node, rows, gather.own, Slice(out, 0));
    for (int64_t hop = 1; hop < ranks_; ++hop) {
      const int theirs = Slice(out, hop);
      for (int64_t c = 0; c < chunks_; ++c) {
        Emit(node, rows, ChunkOf(gather.others[static_cast<size_t>(hop) - 1], c),
             ChunkOf(theirs, c));
      }
    }
  }

  /// The other ranks' rows first: a sum over a slice starts at the rank behind its owner and goes
  /// around the ring, each rank's product adding to what has come, while products over the next
  /// rows run. Of the own rows a norm that reads the sum adds what has come; else, of several parts
  /// of a slice, each comes beside a product, so the own rows' products add to it.
  void EmitProducer(const Node& node, Scatter& scatter) {
    const RowOperands rows = *RowOperandsOf(node);
    const int in = Tensor(node, rows.in);
    const int whole = Tensor(node, rows.out);
    const bool adds = chunks_ > 1 && !scatter.in_norm;
    Node adding = node;
    adding.operands[rows.out].access = Access::kAccumulate;
    OpAttributes on_group;
    on_group.communicator = 0;
    int sent = New(whole, ".other");
    for (int64_t hop = 1; hop < ranks_; ++hop) {
      const bool last = hop + 1 == ranks_;
      scatter.received = adds && last ? scatter.sum : New(whole, ".received");
      const int theirs = Slice(in, hop);
      for (int64_t c = 0; c < chunks_; ++c) {
        Emit(hop > 1 ? adding : node, rows, ChunkOf(theirs, c), ChunkOf(sent, c));
        EmitShift(ChunkOf(sent, c), ChunkOf(scatter.received, c), on_group);
      }
      sent = scatter.received;
    }
    if (!adds) scatter.own = New(whole, ".own");
    const int own = Slice(in, 0);
    const int out = adds ? scatter.received : scatter.own;
    for (int64_t c = 0; c < chunks_; ++c) {
      Emit(adds ? adding : node, rows, ChunkOf(own, c), ChunkOf(out, c));
    }
  }

  /// What adds to a received slice lets the next weight gradient go first, which needs no traffic;
  /// not one that goes beside later shifts.
  void CoverScatter(const Scatter& scatter) {
    auto& nodes = graph_.nodes;
    const int received = graph_.tensor(scatter.received).storage;
    const auto adds = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) {
      return node.kind != OpKind::kShift &&
             std::any_of(node.operands.begin(), node.operands.end(), [&](const Operand& o) {
               return o.tensor >= 0 && graph_.tensor(o.tensor).storage == received;
             });
    });
    for (auto w = adds; w != nodes.end() && w->attributes.communicator != 0; ++w) {
      if (w->kind != OpKind::kLinearWeightGrad) continue;
      if (std::none_of(adds, w, [&](const Node& before) { return Touches(*w, before); })) {
        std::rotate(adds, w, w + 1);
      }
      return;
    }
  }

  void EmitSum(const Scatter& scatter) {
    if (scatter.own < 0 || scatter.in_norm) return;
    graph_.AddNode(OpKind::kAdd, {Read(scatter.own), Read(scatter.received), Write(scatter.sum)});
  }

  void Emit(Node node, const RowOperands& rows, int in, int out) {
    node.operands[rows.in].tensor = in;
    node.operands[rows.out].tensor = out;
    graph_.nodes.push_back(std::move(node));
  }
  void EmitShift(int in, int out, const OpAttributes& attributes) {
    graph_.AddNode(OpKind::kShift, {Read(in), Write(out)}, attributes);
  }

  /// Part `c` of a slice of the sequence.
  int ChunkOf(int slice, int64_t c) {
    return chunks_ == 1 ? slice : RowChunk(graph_, slice, c, chunks_);
  }

  /// Of the rank that is `hops` before this one.
  int Slice(int whole, int64_t hops) {
    return RowChunk(graph_, whole, (own_ + ranks_ - hops) % ranks_, ranks_);
  }

  /// A tensor of its own of the rows of a slice of `whole`.
  int New(int whole, const char* suffix) {
    GraphTensor t = graph_.tensor(whole);
    t.view.name += suffix;
    t.view.shape[0] /= ranks_;
    t.view.offset = 0;
    t.storage = -1;
    t.saved = false;
    t.placed = false;
    t.role = Role::kActivation;
    return graph_.AddTensor(t);
  }

  Graph& graph_;
  const std::vector<Node> nodes_;
  const int64_t own_;
  const int64_t ranks_;
  const int64_t chunks_;                   ///< of each slice
  std::map<size_t, Gather> gathers_;       ///< by node
  std::map<size_t, size_t> consumers_;     ///< product -> its gather
  std::map<size_t, Scatter> scatters_;     ///< by node
  std::map<size_t, size_t> producers_;     ///< product -> its scatter
  std::map<size_t, size_t> adding_norms_;  ///< norm -> the scatter whose parts it adds
  std::set<size_t> moved_;                 ///< weight gradients and norms that gathers emit
  size_t prefetch_at_ = 0;  ///< in the new nodes: behind the last shift for a product; 0: none yet
};

}  // namespace

void OverlapSlices(Graph& graph, const SplitFacts& split) {
  SliceOverlapper(graph, split).Run();
}

}  // namespace meshwright::planner::lower
