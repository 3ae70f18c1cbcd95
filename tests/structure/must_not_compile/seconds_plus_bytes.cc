// Quantities of different units do not add.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
auto Sum(Seconds a, Bytes b) {
  return a + b;
}
#else
Seconds Sum(Seconds a, Seconds b) {
  return a + b;
}
#endif

}  // namespace meshwright
