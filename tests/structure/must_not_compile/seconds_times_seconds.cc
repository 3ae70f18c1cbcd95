// There are no square seconds.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
Seconds Square(Seconds a) {
  return a * a;
}
#else
Seconds Twice(Seconds a) {
  return a * 2.0;
}
#endif

}  // namespace meshwright
