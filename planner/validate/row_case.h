// RowCase: a measured row as a model, a cluster, a stack and a split, with every assumption stated.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/stack/stack_costs.h"
#include "planner/stack/step.h"
#include "planner/validate/measured_row.h"
#include "topologies/status.h"

namespace meshwright::planner::validate {

/// What is known of the rows of one source beyond their cells: one entry of
/// cost_models/validation/sources.yaml.
struct SourceFacts {
  std::string prefix;  ///< of the ids
  std::string year;    ///< of the rows that it is about; empty: of all
  std::string stack;
  std::map<std::string, std::string> cells;  ///< for blank cells, by column
  double network_gbit_per_gpu = 0;           ///< 0: that of the shipped cluster
  std::string profile;                       ///< empty: that of the GPU's name
  /// micro_batch holds what a data-parallel rank takes in a step; pipelines cut it in pp parts.
  bool local_batch = false;
  /// Where micro_batch is blank: one micro-batch a step.
  bool one_micro_batch = false;
  std::string why;
  std::string outliers;  ///< rows that do not fit, and what is known of why
};

/// kInvalidInput names file and line.
Result<std::vector<SourceFacts>> ParseSourceFacts(std::string_view text, const std::string& source);
/// The shipped file.
Result<std::vector<SourceFacts>> LoadSourceFacts();

struct CaseOptions {
  std::string stack;    ///< empty: by source, else by the row's fields
  std::string profile;  ///< empty: by the GPU's name
};

struct RowCase {
  std::string stack;
  std::string cluster;  ///< shipped one with that GPU
  stack::CostInputs inputs;
  stack::Split split;
  stack::LayerMode mode = stack::LayerMode::kKeep;
  std::vector<std::string> assumptions;
};

/// Makes cases; keeps stacks, profiles and fabrics that it has read.
class CaseMaker {
 public:
  CaseMaker(std::vector<SourceFacts> facts, CaseOptions options);
  ~CaseMaker();

  /// kInvalidInput for a cell that cannot be read; kUnsupported naming the field when the row does
  /// not say enough or asks for what no stack can do.
  Result<RowCase> Make(const MeasuredRow& row);

 private:
  struct Cache;
  std::vector<SourceFacts> facts_;
  CaseOptions options_;
  std::unique_ptr<Cache> cache_;
};

/// The model of a row: a shipped one of that name with the row's number of layers, or made of the
/// row's fields.
Result<ModuleSpec> ModuleOfRow(const MeasuredRow& row, std::vector<std::string>* assumptions);

}  // namespace meshwright::planner::validate
