#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/verify/checks.h"
#include "planner/verify/names.h"

namespace meshwright::planner {
namespace {

Status Bad(const std::string& who, const std::string& what) {
  return Infeasible(fmt::format("parameters: {}: {}", who, what));
}

/// Elements of a shape; -1 when an extent is not positive or the product does not fit.
int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    if (d <= 0 || d > (int64_t{1} << 56) / n) return -1;
    n *= d;
  }
  return n;
}

/// Local shape = global shape with the cut axis divided part by part.
Status CheckShape(const ParameterEntry& e, int64_t tp, const std::string& who) {
  if (e.global_shape.size() != e.local_shape.size() || ElementsOf(e.global_shape) < 0 ||
      ElementsOf(e.local_shape) < 0) {
    return Bad(who, fmt::format("{} has global shape [{}] and local shape [{}]", e.name,
                                fmt::join(e.global_shape, ","), fmt::join(e.local_shape, ",")));
  }
  if (e.axis >= static_cast<int32_t>(e.global_shape.size())) {
    return Bad(who,
               fmt::format("{} is cut along axis {} of {}", e.name, e.axis, e.global_shape.size()));
  }
  std::vector<int64_t> expected = e.global_shape;
  if (e.axis >= 0) {
    int64_t global = 0;
    int64_t local = 0;
    for (const ParameterPart& part : e.parts) {
      if (part.copies < 1 || part.copies > tp || tp % part.copies != 0 || part.extent < 1 ||
          part.extent % (tp / part.copies) != 0) {
        return Bad(who, fmt::format("{}: a part of {} rows with {} copies cannot be cut over tp {}",
                                    e.name, part.extent, part.copies, tp));
      }
      global += part.extent;
      local += part.extent / (tp / part.copies);
    }
    const auto axis = static_cast<size_t>(e.axis);
    if (global != e.global_shape[axis]) {
      return Bad(who, fmt::format("{}: its parts have {} rows, its global shape [{}]", e.name,
                                  global, fmt::join(e.global_shape, ",")));
    }
    expected[axis] = local;
  }
  if (expected == e.local_shape) return Status::Ok();
  return Bad(who, fmt::format("{} has local shape [{}], its cut of [{}] over tp {} gives [{}]",
                              e.name, fmt::join(e.local_shape, ","), fmt::join(e.global_shape, ","),
                              tp, fmt::join(expected, ",")));
}

/// Buckets in order, disjoint, divisible by the data-parallel size, inside the area.
Status CheckBuckets(const RankProgram& program, int64_t dp, const std::string& who) {
  int64_t end = 0;
  for (size_t i = 0; i < program.buckets.size(); ++i) {
    const Bucket& bucket = program.buckets[i];
    if (bucket.offset < end || bucket.elements < 0 || bucket.elements > (int64_t{1} << 56) ||
        bucket.offset > (int64_t{1} << 56)) {
      return Bad(who, fmt::format("bucket {} is elements {}..{}, the one before ends at {}", i,
                                  bucket.offset, bucket.offset + bucket.elements, end));
    }
    if (dp > 0 && bucket.elements % dp != 0) {
      return Bad(who, fmt::format("bucket {} has {} elements, not a multiple of dp {}", i,
                                  bucket.elements, dp));
    }
    end = bucket.offset + bucket.elements;
  }
  return Status::Ok();
}

Status CheckPlaces(const RankProgram& program, const std::string& who) {
  std::vector<const ParameterEntry*> order;
  for (const ParameterEntry& e : program.parameters) order.push_back(&e);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 0; i < order.size(); ++i) {
    const ParameterEntry& e = *order[i];
    const auto count = static_cast<int64_t>(program.buckets.size());
    if (e.bucket < 0 || e.bucket >= count) {
      return Bad(who, fmt::format("{} is in bucket {} of {}", e.name, e.bucket, count));
    }
    const Bucket& bucket = program.buckets[static_cast<size_t>(e.bucket)];
    if (e.offset < bucket.offset || e.offset > bucket.offset + bucket.elements ||
        e.elements() > bucket.offset + bucket.elements - e.offset) {
      return Bad(who, fmt::format("{} (elements {}..{}) is not inside bucket {} ({}..{})", e.name,
                                  e.offset, e.offset + e.elements(), e.bucket, bucket.offset,
                                  bucket.offset + bucket.elements));
    }
    if (i > 0 && order[i - 1]->offset + order[i - 1]->elements() > e.offset) {
      return Bad(who, fmt::format("{} and {} overlap at element {}", order[i - 1]->name, e.name,
                                  e.offset));
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckParameters(const Programs& programs) {
  MW_RETURN_IF_ERROR(CheckIndices(programs));
  for (size_t p = 0; p < programs.programs.size(); ++p) {
    const RankProgram& program = programs.programs[p];
    const ModulePlan& m = programs.modules[static_cast<size_t>(program.module)];
    const std::string who = verify::NameRanksOf(programs, static_cast<int32_t>(p));
    for (const ParameterEntry& e : program.parameters) {
      MW_RETURN_IF_ERROR(CheckShape(e, m.tp, who));
    }
    MW_RETURN_IF_ERROR(CheckBuckets(program, m.dp, who));
    MW_RETURN_IF_ERROR(CheckPlaces(program, who));
  }
  return Status::Ok();
}

}  // namespace meshwright::planner
