// The commands, one .cc file each.
#pragma once

#include "tools/command_line.h"

namespace meshwright::tools {

Command TopoCommand();
Command PlanCommand();
Command EstimateCommand();
Command SimulateCommand();
Command VerifyCommand();
Command RunCommand();
Command CalibrateCommand();
Command ValidateCommand();

}  // namespace meshwright::tools
