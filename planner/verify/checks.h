// The single checks of the verifier; each can be called alone. All return kInfeasible with ranks,
// tasks and ops named. All but CheckIndices begin with it, so none trusts an index.
#pragma once

#include "planner/ir/program.h"
#include "planner/verify/fold.h"
#include "planner/verify/verify.h"
#include "topologies/status.h"

namespace meshwright::planner {

/// Every index (programs, blocks, tensors, streams, events, communicators, groups, ranks) is in
/// range, extents are positive and their products fit 64 bits.
Status CheckIndices(const Programs& programs);

/// Group tables of all ranks: coordinates, membership by kind, positions, one stream each.
Status CheckGroups(const Programs& programs);

/// Forward and Backward tasks cover every layer of every module once a micro-batch, in order.
Status CheckLayers(const Programs& programs);

/// Operands of every op against its schema row: count, access, shapes, dtypes.
Status CheckBlocks(const Programs& programs);

/// Views of every instance inside the area (and slot) of their region; parameter views on the
/// parameters of the instance's layer.
Status CheckAddresses(const Programs& programs);

/// Parameter entries: local shape = global shape / cut, inside their bucket, none overlapping.
Status CheckParameters(const Programs& programs);

/// What a layer's backward reads from the slot is what its forward left there, tensor by tensor.
Status CheckSaved(const Programs& programs);

/// The k-th op on a communicator is the same collective on all its ranks, or a send that meets a
/// receive of the same elements, dtype, micro-batch and direction.
Status CheckMessages(const Programs& programs, const RankClasses& classes);

/// Strict rendezvous over FIFO streams and events runs to completion. One step is enough: a wait
/// for an event of the step before points backward in time, and CheckMessages proves that every
/// communicator is used equally often by its ranks, so partners are always of the same step.
Status CheckDeadlock(const Programs& programs, const RankClasses& classes);

/// Every two accesses to the same bytes of a rank, one of them writing, are ordered by streams and
/// events, within a step and from one step to the next (more distant steps follow from those).
/// Stale values are refused too: what a micro-batch reads from slots and buffers was written by the
/// same micro-batch, gradients start each step with a write, and within a block no tensor is read
/// after another has been written over it. `use_templates` false: every op is
/// taken alone instead of block by block; the slow reference of tests.
Status CheckRaces(const Programs& programs, bool use_templates = true, int threads = 1);

/// Areas in order and disjoint, their sum the arena, slots and scratch sufficient, limits held.
Status CheckMemory(const Programs& programs, const VerifyLimits& limits);

}  // namespace meshwright::planner
