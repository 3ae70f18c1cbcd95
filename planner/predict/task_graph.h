// Programs -> task graph: what the simulator runs is what the ranks run, op by op.
#pragma once

#include <cstdint>
#include <vector>

#include "cost_models/simulate.h"
#include "cost_models/task_graph.h"
#include "planner/ir/program.h"
#include "planner/ir/trace.h"
#include "planner/predict/prices.h"
#include "planner/verify/fold.h"
#include "topologies/status.h"

namespace meshwright::planner {

struct TaskGraphOptions {
  bool fold = true;   ///< one set of queues a class of ranks; false: one a rank
  bool merge = true;  ///< ops of a task that nobody else waits for become one node, see ToTaskGraph
  int64_t steps = 1;  ///< 1 or more; the second step shows what overlaps with the first
};

/// One op of a class of ranks, or `ops` consecutive ops of one stream and task, in one step.
struct TaskGraphEntry {
  cost::NodeId node = 0;
  int32_t rank_class = 0;
  int32_t step = 0;
  int32_t task = 0;      ///< of RankProgram::tasks
  int32_t instance = 0;  ///< of the task: that of the first op
  int32_t op = 0;        ///< of the block: the first op
  int32_t ops = 1;
  bool rendezvous = false;
  /// What the class itself must have ended before, in TaskGraphOfStep::arrivals; rendezvous only.
  int32_t arrivals_begin = 0;
  int32_t arrivals_end = 0;
};

struct TaskGraphOfStep {
  cost::TaskGraph graph;
  RankClasses classes;
  int64_t steps = 1;
  /// classes x streams of the class's program -> queue.
  std::vector<std::vector<cost::QueueId>> queues;
  /// By class, step and order of issue. A rendezvous has an entry for each class that takes part.
  std::vector<TaskGraphEntry> entries;
  std::vector<cost::NodeId> arrivals;
  /// A pool a class: bytes of the saved slots in use, from the begin of Forward to the end of
  /// Backward.
  std::vector<cost::PoolId> saved_pools;
};

/// One node an op and class, in the queue of its stream; edges are the event registers (a wait
/// leads to the latest record issued before it; in the first step an event without one is
/// complete). A collective or message is one node in the queues of all classes that take part.
///
/// Classes are those of FoldRanks, told apart by the paths of their groups. Resources are counted
/// over all replicas before folding (shared_resources.h). With `merge`, consecutive ops of a stream
/// inside a task are one node where no other stream waits for one of them, none waits for another
/// stream and they share no resource: times stay the same.
///
/// `programs` must have passed Verify. Errors: groups whose devices are not joined.
Result<TaskGraphOfStep> ToTaskGraph(const Programs& programs, const Prices& prices,
                                    const TaskGraphOptions& options);

/// Rows as the executor records them: by rank, step, task. Times are those of the rank's class.
std::vector<TraceRow> ToTrace(const Programs& programs, const TaskGraphOfStep& step,
                              const cost::Timeline& timeline);

/// Names for error messages of the simulator: "rank 3, Forward(0,2), linear".
cost::SimulateOptions SimulateLabels(const Programs& programs, const TaskGraphOfStep& step);

}  // namespace meshwright::planner
