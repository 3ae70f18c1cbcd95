// Token ids and labels of one micro-batch, as the programs want them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data_source.h"
#include "runtime/executor.h"
#include "runtime/kernels.h"
#include "topologies/status.h"

namespace meshwright::runtime {

/// Reads what a kLoadTokens or kLoadLabels op asks for: ids (labels: those of the next position,
/// -100 where options.label_counts says no) as [S, micro_batch], sequence first, into `out`. `ids`
/// is scratch. Errors: kInfeasible for an operand of another size or type; those of the source.
Status ReadMicroBatch(const OpCall& call, int64_t step, DataSource& data, const RunOptions& options,
                      std::vector<int32_t>* ids, int32_t* out);

}  // namespace meshwright::runtime
