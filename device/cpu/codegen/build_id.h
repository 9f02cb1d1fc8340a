// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/build_id.h: tells builds of this code apart.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_BUILD_ID_H_
#define CONSORT_DEVICE_CPU_CODEGEN_BUILD_ID_H_

#include <string>

namespace consort::cpu {

// The build id that the linker gave the library or program which holds this function; empty if it
// gave none. Any thread. Source: ELF notes, NT_GNU_BUILD_ID (binutils ld, --build-id).
std::string BuildId();

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_BUILD_ID_H_
