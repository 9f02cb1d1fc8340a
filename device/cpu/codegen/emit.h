// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit.h: the emit functions of the instruction table, by file.
#ifndef CONSORT_DEVICE_CPU_CODEGEN_EMIT_H_
#define CONSORT_DEVICE_CPU_CODEGEN_EMIT_H_

#include "device/cpu/codegen/instruction_table.h"

namespace consort::cpu {

// emit_integer.cc
void EmitIntegerAdd(Step& step);
void EmitIntegerMultiply(Step& step);
void EmitIntegerMad(Step& step);
void EmitIntegerDivide(Step& step);
void EmitSad(Step& step);
void EmitIntegerAbsNeg(Step& step);
void EmitIntegerMinMax(Step& step);
void EmitLogic(Step& step);
void EmitShift(Step& step);
void EmitDotProduct(Step& step);
void EmitPackedAdd(Step& step);

// emit_bits.cc
void EmitBitCount(Step& step);
void EmitBitReverse(Step& step);
void EmitFindHighBit(Step& step);
void EmitFindNthSet(Step& step);
void EmitBitFieldExtract(Step& step);
void EmitBitFieldInsert(Step& step);
void EmitBitMask(Step& step);
void EmitPermute(Step& step);
void EmitLogic3(Step& step);
void EmitFunnelShift(Step& step);

// emit_float.cc
void EmitFloatAdd(Step& step);
void EmitFma(Step& step);
void EmitFloatDivide(Step& step);
void EmitFloatAbsNeg(Step& step);
void EmitFloatMinMax(Step& step);
void EmitCopysign(Step& step);
void EmitReciprocal(Step& step);
void EmitSquareRoot(Step& step);
void EmitTranscendental(Step& step);
void EmitTestp(Step& step);

// emit_compare.cc
void EmitSetp(Step& step);
void EmitSet(Step& step);
void EmitSelp(Step& step);
void EmitSlct(Step& step);

// emit_convert.cc
void EmitCvt(Step& step);
void EmitCvtTf32(Step& step);
void EmitCvtFp8(Step& step);
void EmitCvtPack(Step& step);
void EmitCvta(Step& step);
void EmitIsSpace(Step& step);
void EmitMove(Step& step);

// emit_memory.cc
void EmitLoad(Step& step);
void EmitStore(Step& step);
void EmitAtomic(Step& step);
void EmitReduction(Step& step);
void EmitFence(Step& step);
void EmitPrefetch(Step& step);
void EmitCreatePolicy(Step& step);
void EmitCopyAsync(Step& step);
void EmitCopyAsyncWait(Step& step);

// emit_video.cc
void EmitVideo(Step& step);
void EmitVideoMad(Step& step);
void EmitVideoParts(Step& step);

// emit_matrix.cc
void EmitMma(Step& step);
void EmitWmma(Step& step);
void EmitMatrixMove(Step& step);
void EmitMatrixTranspose(Step& step);

// emit_control.cc
void EmitBranch(Step& step);
void EmitBranchIndexed(Step& step);
void EmitCall(Step& step);
void EmitRet(Step& step);
void EmitExit(Step& step);
void EmitTrap(Step& step);
void EmitNothing(Step& step);
void EmitNanosleep(Step& step);
void EmitAlloca(Step& step);
void EmitStackSave(Step& step);
void EmitStackRestore(Step& step);

// emit_texture.cc
void EmitTexture(Step& step);
void EmitTextureGather(Step& step);
void EmitSurfaceLoad(Step& step);
void EmitSurfaceStore(Step& step);
void EmitSurfaceReduce(Step& step);
void EmitTextureQuery(Step& step);

// emit_warp.cc
void EmitBarrier(Step& step);
void EmitShuffle(Step& step);
void EmitVote(Step& step);
void EmitActiveMask(Step& step);
void EmitMatch(Step& step);
void EmitWarpReduce(Step& step);
void EmitElect(Step& step);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_CODEGEN_EMIT_H_
