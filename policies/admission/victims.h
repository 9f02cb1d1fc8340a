// SPDX-License-Identifier: Apache-2.0
// policies/admission/victims.h: whose memory leaves the device so that another's can come.
//
// Pure. Applications in CPU phases go first: those over their tenant's soft quota, then those that
// have not used the device for longest. One that is at work is asked to leave only when the
// newcomer has waited for `patience` and this one has had its memory there for as long; so
// applications that never pause take turns, each long enough to be worth the copying.
#ifndef CONSORT_POLICIES_ADMISSION_VICTIMS_H_
#define CONSORT_POLICIES_ADMISSION_VICTIMS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/units.h"

namespace consort::admission {

struct Candidate {
  Bytes bytes = 0;          // on the device, that can be moved away
  bool idle = false;        // in a CPU phase
  Nanos idle_for = 0;       // since its device work ended; of an idle one
  Nanos on_device_for = 0;  // since its memory came
  bool over_soft = false;
};

struct Shortage {
  Bytes bytes = 0;       // that must go
  Nanos waited = 0;      // by who needs them
  Nanos idle_least = 0;  // a pause shorter than this is no CPU phase
  Nanos patience = 0;
};

struct Victims {
  bool enough = false;        // with these, and those that are asked, the shortage ends
  std::vector<size_t> leave;  // idle ones, to move away now, in this order
  std::vector<size_t> ask;    // busy ones, to end what they do and then leave
};

Victims ChooseVictims(std::span<const Candidate> candidates, const Shortage& shortage);

}  // namespace consort::admission

#endif  // CONSORT_POLICIES_ADMISSION_VICTIMS_H_
