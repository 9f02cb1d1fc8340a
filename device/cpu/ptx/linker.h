// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/linker.h: several PTX texts to one, as a linker of their machine code would join
// them.
//
//   .visible, .entry   known to all units; one definition
//   .weak, .common     likewise; of several definitions the first stays, unless one is not weak
//   .extern            another unit's, or what the device itself provides
//   none of these      the unit's own: gets another name where that is another unit's as well
//
// The result is PTX again, which the rest of this device takes as any other. Pure; any thread.
// Source: PTX ISA 9.0, 11.6 "Linking Directives".
#ifndef CONSORT_DEVICE_CPU_PTX_LINKER_H_
#define CONSORT_DEVICE_CPU_PTX_LINKER_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace consort::cpu::ptx {

struct LinkInput {
  std::string name;  // for messages
  std::string text;
};

// The joined text, for the latest version and target of all. What is declared and defined nowhere
// stays so: who loads the text says which of it the device lacks.
// kInvalidArgument, kUnimplemented, kResourceExhausted: an input is not PTX; as ParsePtx, with its
// name. kAlreadyExists: defined twice. kFailedPrecondition: two units do not mean the same by a
// name. Messages name symbol and inputs.
absl::StatusOr<std::string> LinkPtx(std::span<const LinkInput> inputs);

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_LINKER_H_
