// A quantity does not turn into a bare number by itself.
#include "topologies/units.h"

namespace meshwright {

#ifdef MW_MISUSE
double Number(Seconds a) {
  return a;
}
#else
double Number(Seconds a) {
  return a.value();
}
#endif

}  // namespace meshwright
