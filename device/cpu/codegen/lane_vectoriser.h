// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/lane_vectoriser.h: turns the code of one thread into code that runs a group of
// threads in step, one lane of vector registers each.
//
// Control flow that is the same for all lanes stays control flow. Where lanes part, both sides run
// one after the other, each with a mask of its lanes. Blocks keep a topological order; each is
// entered only if a lane needs it. Values that blocks share lie in stack slots, which mem2reg makes
// values again. What LLVM has no vector form of runs lane by lane.
//
// Barriers and collectives need all lanes together: kernels where that is not sure are refused, and
// run thread by thread. Thread compatible.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_LANE_VECTORISER_H_
#define CONSORT_DEVICE_CPU_CODEGEN_LANE_VECTORISER_H_

#include <string>

#include "device/cpu/codegen/lane_shapes.h"
#include "device/cpu/engine/thread_context.h"
#include "llvm/IR/Module.h"

namespace consort::cpu {

// Gives `scalar`, which must be as LaneShapes asks, the body of a group. Empty on success; else the
// reason why it has to run thread by thread, and `scalar` does what it did.
// `mode`: kCoroutines, kFibers or kLoop, how the groups of a block wait for each other.
std::string VectoriseLanes(llvm::Function& scalar, const LaneGroup& group, ThreadsMode mode);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_LANE_VECTORISER_H_
