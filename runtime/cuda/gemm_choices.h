// Which matrix product, which algorithm was chosen for it, and the text form in which choices are
// kept on disk and sent between ranks. No CUDA here.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/ir/dtype.h"
#include "topologies/status.h"

namespace meshwright::runtime::cuda {

/// Highest class of alignment, in bytes: that of bf16 parameters in a plan's arena, so that the
/// layers of a model share their algorithms.
inline constexpr int32_t kFullAlignment = 128;

/// A row-major product d [m, n] = op(a) [m, k] op(b) [k, n] (+ bias [n]) (+ d): everything that the
/// choice of an algorithm depends on. Sums are fp32.
struct GemmKey {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;                       ///< a is stored [k, m]
  bool transpose_b = false;                       ///< b is stored [n, k]
  planner::DType input = planner::DType::kBf16;   ///< of a, b
  planner::DType output = planner::DType::kBf16;  ///< of d and the bias
  int64_t lda = 0, ldb = 0, ldd = 0;              ///< elements between stored rows
  bool bias = false;
  bool accumulate = false;  ///< d is added to
  int32_t alignment =
      kFullAlignment;     ///< bytes that all addresses are multiples of: 128, 16, 8, 4, 2
  int32_t sm_target = 0;  ///< multiprocessors to choose for; 0: all
  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};
/// "4096x2048x8192 nt bf16->fp32 accumulate ..." for messages and tables.
std::string ToString(const GemmKey& key);

/// The class of alignment of an address or of several or-ed together.
int32_t AlignmentClass(uintptr_t address);

/// An algorithm of cuBLASLt as its opaque words, and what was measured.
struct GemmChoice {
  std::array<uint64_t, 8> algorithm{};  ///< cublasLtMatmulAlgo_t
  int64_t workspace_bytes = 0;
  double seconds = 0.0;        ///< median, cold L2
  double first_seconds = 0.0;  ///< of the heuristics' first proposal, measured beside it
  int32_t candidates = 0;      ///< how many were timed
  friend bool operator==(const GemmChoice&, const GemmChoice&) = default;
};
using GemmChoices = std::map<GemmKey, GemmChoice>;

/// What choices are only good for.
struct GemmMachine {
  std::string device;   ///< name that the driver gives
  int64_t library = 0;  ///< cublasLtGetVersion
  bool deterministic = false;
  friend bool operator==(const GemmMachine&, const GemmMachine&) = default;
};

/// One JSON object a line, in key order.
std::string GemmChoicesText(const GemmMachine& machine, const GemmChoices& choices);

/// Choices of `machine` in a text, and the lines that belong to other machines, unchanged.
/// kInvalidInput, naming `origin` and line, for a line that is not a choice.
struct GemmChoicesFile {
  GemmChoices own;
  std::vector<std::string> others;
};
Result<GemmChoicesFile> ParseGemmChoices(const std::string& text, const std::string& origin,
                                         const GemmMachine& machine);

/// The file's choices; empty when there is no such file.
Result<GemmChoicesFile> LoadGemmChoices(const std::string& path, const GemmMachine& machine);
/// Merges `choices` into the file and replaces it in one step.
Status SaveGemmChoices(const std::string& path, const GemmMachine& machine,
                       const GemmChoices& choices);

}  // namespace meshwright::runtime::cuda
