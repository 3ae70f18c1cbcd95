// The clock of the simulator is converted to by name only.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
Nanoseconds Clock(Seconds a) {
  return a;
}
#else
Nanoseconds Clock(Seconds a) {
  return ToNanoseconds(a);
}
#endif

}  // namespace meshwright
