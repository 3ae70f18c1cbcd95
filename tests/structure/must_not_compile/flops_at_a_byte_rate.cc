// Work is divided by its own rate: FLOPs not by bytes per second.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
Seconds Time(Flops a, BytesPerSecond b) {
  return a / b;
}
#else
Seconds Time(Flops a, FlopsPerSecond b) {
  return a / b;
}
#endif

}  // namespace meshwright
