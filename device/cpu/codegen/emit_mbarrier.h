// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_mbarrier.h: the emit functions of mbarrier objects.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_EMIT_MBARRIER_H_
#define CONSORT_DEVICE_CPU_CODEGEN_EMIT_MBARRIER_H_

#include "device/cpu/codegen/instruction_table.h"

namespace consort::cpu {

void EmitMbarrier(Step& step);
void EmitCopyAsyncArrive(Step& step);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_EMIT_MBARRIER_H_
