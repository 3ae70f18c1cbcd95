// The ops of each participant of a channel in program order: what CheckMessages compares and
// CheckDeadlock lets meet.
#pragma once

#include <vector>

#include "planner/ir/program.h"
#include "planner/verify/fold.h"
#include "planner/verify/names.h"

namespace meshwright::planner::verify {

/// Channels whose ops must meet another participant; the others are collectives among ranks that
/// do the same at the same time.
bool HasPartners(const Channel& channel);

/// channel -> participant (index into Channel::participants) -> its ops in program order. Channels
/// without partners stay empty.
using ChannelOps = std::vector<std::vector<std::vector<OpPlace>>>;
ChannelOps ListChannelOps(const Programs& programs, const RankClasses& classes,
                          const Channels& channels);

}  // namespace meshwright::planner::verify
