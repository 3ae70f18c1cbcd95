// The named passes that turn a layer item into block templates:
//   build -> shard -> fuse -> differentiate -> recompute -> overlap -> place -> allocate.
// Each is a function on Graphs whose result can be dumped (LowerOptions::dump).
#pragma once

#include "planner/lower/graph.h"
#include "planner/lower/item.h"

namespace meshwright::planner::lower {

/// build: forward graph of an item with unsharded activation shapes.
/// `with_delta`: the residual stream enters as a pair (r, pending addend).
Graph BuildLayer(const SplitFacts& split, int kind_index, const ItemParameters& parameters,
                 bool with_delta);
Graph BuildEmbedding(const SplitFacts& split, const ItemParameters& parameters);
/// The head up to the logits' input: the final norm. BuildHeadStep adds product, loss and gradients.
Graph BuildHead(const SplitFacts& split, const ItemParameters& parameters);

/// shard: local shapes; collectives around column- and row-cut products, biases after reductions.
void Shard(Graph& graph, const SplitFacts& split);

/// fuse: add + norm -> norm with delta; drops what the fusion leaves unused.
void Fuse(Graph& graph);

/// differentiate: appends to a copy of the forward tensors the gradient ops in reverse order.
/// `first`: the first micro-batch of the step, which writes gradients that later ones add to.
/// The result still refers to forward tensors; recompute decides where those come from.
struct DifferentiateOptions {
  bool first = false;
  bool tied_here = false;  ///< the embedding's gradient always adds to the head's
};
Graph Differentiate(const Graph& forward, const SplitFacts& split,
                    const ItemParameters& parameters, const DifferentiateOptions& options);

/// recompute: marks in both graphs what is saved under `mode` and puts the forward ops that remake
/// the rest in front of their first use in backward.
void ApplyRecompute(Graph& forward, Graph& backward, Recompute mode);

/// overlap: cuts a product whose output the tensor group sums, the sum, and the norm and product
/// behind it into `tensor_chunks` chunks of rows, so that traffic of one chunk goes beside the next
/// one's products. With sequence parallelism: OverlapSlices.
void OverlapTensorTraffic(Graph& graph, const SplitFacts& split);
/// Of ranks with a slice of the sequence each: a product over gathered rows begins with the rank's
/// own, and one whose output is scattered ends with it, while slices go around the ring.
void OverlapSlices(Graph& graph, const SplitFacts& split);

/// Rows [chunk, chunk + 1) * extent / chunks of the first axis of `whole`, which shares its memory.
int RowChunk(Graph& graph, int whole, int64_t chunk, int64_t chunks);
/// Whether tensors have bytes in common; slices of one storage may have none.
bool ShareBytes(const Graph& graph, int a, int b);

/// Operands of a norm that have its rows: x, delta, sum, output, statistics, the other rank's delta.
inline constexpr size_t kNormRows[] = {0, 1, 4, 5, 6, 7};
/// Whether those can be cut into `chunks` chunks of rows. The statistics of a layer norm lie with
/// all means first: their rows are no contiguous slice.
bool CanCutNorm(const Graph& graph, const Node& norm, int64_t chunks);

/// The head's forward, loss and backward as one graph (row-chunked), from the sharded head.
Graph BuildHeadStep(const SplitFacts& split, const ItemParameters& parameters, bool first,
                    int64_t row_chunks);
/// Row chunks of the head so that one chunk of logits stays within the split's bytes for it, as far
/// as the sequence can be halved; at most 1024.
int64_t HeadRowChunks(const SplitFacts& split);

/// Event registers of every block: the end of its tensor and compute work, for the next block.
inline constexpr EventId kTensorDone = 0;
inline constexpr EventId kComputeDone = 1;
/// The first register that is free for other use.
inline constexpr EventId kFirstEvent = 2;

/// place: streams and events. allocate: saved and scratch offsets. The result is a template.
struct BlockOptions {
  int64_t scratch_begin = 0;  ///< first byte of Region::kScratch that the block may use
  bool tensor_stream = false;  ///< some block of the rank uses the tensor stream
};
Block PlaceAndAllocate(const Graph& graph, const BlockOptions& options);

/// Lays out the tensors marked saved: the same offsets in forward and backward. Returns bytes.
int64_t AllocateSaved(Graph& forward, Graph* backward);

/// Text of a graph for dumps.
std::string DumpGraph(const Graph& graph);

/// Elements (of the statistics' type) of the workspace of an attention op with local heads. CPU
/// ranks: score blocks of 64 query rows, twice, and row sums; GPU ranks: AttentionWorkspaceBytes.
int64_t AttentionWorkspaceElements(const OpAttributes& attributes, const SplitFacts& split,
                                   bool backward);

}  // namespace meshwright::planner::lower
