// Ways to sum over rows whose rates are still to be compared on a GPU. kernel_rates times them side
// by side and the twin tests run them all; programs take the first.
#pragma once

namespace meshwright::runtime::cuda {

/// Of ColumnSums (bias gradients).
enum ColumnCandidate : int {
  kTwoKernels,         ///< partial rows, then a second kernel behind
  kLastBlock8,         ///< 8 rows a block at the same time, 4 blocks an SM; the last one adds
  kLastBlock16,        ///< 16 rows, 2 blocks
  kLastBlock32,        ///< 32 rows, 1 block
  kLastBlock16Behind,  ///< as kLastBlock16, its start overlaps the end of the kernel before
  kLastBlock32Behind,
  kColumnCandidates
};

/// Of the norms' one-pass backward.
enum NormCandidate : int {
  kRowABlock,         ///< a partial row a block, several blocks an SM
  kJoined,            ///< blocks of an SM are one: fewer partial rows
  kJoinedSlim,        ///< and small blocks in the second stage
  kJoinedKeep,        ///< and rows of up to 512 packs: fewer threads keep g and xhat in registers
  kJoinedKeepBehind,  ///< and the start overlaps the end of the kernel before
  kNormCandidates
};

struct KernelCandidates {
  int column_sums = kTwoKernels;
  int norm_grad = kRowABlock;
};
inline KernelCandidates& Candidates() {
  static KernelCandidates candidates;
  return candidates;
}

}  // namespace meshwright::runtime::cuda
