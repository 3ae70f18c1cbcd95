#include "tools/command_line.h"
#include "tools/commands.h"

int main(int argc, char** argv) {
  using namespace meshwright::tools;
  return RunCommandLine(argc, argv,
                        {TopoCommand(), PlanCommand(), EstimateCommand(), SimulateCommand(),
                         VerifyCommand(), RunCommand(), CalibrateCommand(), ValidateCommand()});
}
