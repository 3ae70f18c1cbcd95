// A bare number is not a quantity.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
Seconds Tick() {
  return 1.0;
}
#else
Seconds Tick() {
  return Seconds(1.0);
}
#endif

}  // namespace meshwright
