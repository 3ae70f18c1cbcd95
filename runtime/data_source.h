// Where training tokens come from. A sample is a function of its global index alone, so what is
// read does not depend on how the ranks split the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "topologies/status.h"

namespace meshwright::runtime {

/// Reads samples. Safe to call from several ranks (threads) at once; allocates nothing large.
class DataSource {
 public:
  virtual ~DataSource() = default;

  /// Writes the `sequence` + 1 token ids of one sample to `tokens`: ids 0 .. sequence-1 are the
  /// inputs, ids 1 .. sequence the labels. `sample` (0 .. global_batch-1) counts within the step;
  /// the global sample index is step * global_batch + sample.
  virtual Status Read(int64_t step, int64_t sample, int64_t sequence, int32_t* tokens) = 0;
};

enum class DataFormat : uint8_t {
  kAuto,      ///< by name: "mock", `.u16`, `.u32`, `.bin` (see OpenDataSource), else bytes
  kBytes,     ///< any file; a byte is a token
  kTokens16,  ///< token ids, unsigned 16 bits, little endian
  kTokens32,  ///< token ids, unsigned 32 bits, little endian
  kMock,      ///< uniform pseudo-random ids, no I/O
};
/// "auto", "bytes", "uint16", "uint32", "mock".
std::string ToString(DataFormat format);
Result<DataFormat> ParseDataFormat(const std::string& text);

/// Which window of the file a sample is.
enum class Sampling : uint8_t {
  kRandom,      ///< start uniform over all legal starts, drawn from (seed, global sample index)
  kSequential,  ///< window (global sample index modulo number of disjoint windows)
};

struct DataOptions {
  std::string path = "mock";  ///< a file, or "mock"
  DataFormat format = DataFormat::kAuto;
  Sampling sampling = Sampling::kRandom;
  uint64_t seed = 1;
  int64_t vocab = 0;         ///< ids must be below this
  int64_t sequence = 0;      ///< tokens per sample that will be asked for
  int64_t global_batch = 0;  ///< samples per step
};

/// Opens the source and checks what can be checked up front: a readable regular file that holds at
/// least sequence + 1 tokens, a whole number of ids, and a vocabulary of at least 256 for bytes.
/// `.bin` holds 16-bit ids when `vocab` fits them, else 32-bit ids. Ids themselves are checked when
/// they are read; the error names file, offset and id.
Result<std::unique_ptr<DataSource>> OpenDataSource(const DataOptions& options);

/// Entropy of the byte frequencies of a file, in nats per byte: the loss of the best model that
/// ignores context. Errors: missing, unreadable or empty file.
Result<double> UnigramEntropyNats(const std::string& path);

}  // namespace meshwright::runtime
