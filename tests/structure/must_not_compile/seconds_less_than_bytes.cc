// Quantities of different units do not compare.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
bool Less(Seconds a, Bytes b) {
  return a < b;
}
#else
bool Less(Seconds a, Seconds b) {
  return a < b;
}
#endif

}  // namespace meshwright
