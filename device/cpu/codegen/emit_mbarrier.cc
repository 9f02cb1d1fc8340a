// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_mbarrier.cc: barriers in shared memory; engine/mbarrier.h has the
// objects.
//
// A wait is a loop around test_wait or try_wait, whose branch back lets other threads run (MayPoll
// in layout.cc). Asynchronous copies are over when they are issued. Source: PTX ISA 9.0, 9.7.13.15.
#include "device/cpu/codegen/emit_mbarrier.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

// A block is a cluster of its own.
ptx::Space SpaceOf(const Step& step) {
  return step.Has("shared::cluster") ? ptx::Space::kShared : step.space();
}

Value* Arrive(Step& step, Value* pointer, Value* count, Value* drop, Value* bytes) {
  return step.f.CallRuntime("consort_rt_mbarrier_arrive", step.ir().getInt64Ty(),
                            {pointer, count, drop, bytes});
}

void EmitArrive(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.operand_count() < 2 || step.operand_count() > 3) return step.Unsupported();
  Value* pointer = step.f.Access(step.operand(1), SpaceOf(step), AccessKind::kAtomic, 8);
  Value* number =
      step.operand_count() == 3 ? step.Read(2, Type::kU32) : static_cast<Value*>(ir.getInt32(1));
  const bool with_bytes = step.Has("expect_tx");
  if (with_bytes && step.operand_count() != 3) return step.Unsupported();
  Value* count = with_bytes ? ir.getInt32(1) : number;
  Value* bytes = with_bytes ? number : ir.getInt32(0);
  Value* drop = step.Has("arrive_drop") ? count : ir.getInt32(0);
  step.f.Write(step.operand(0), Type::kB64, Arrive(step, pointer, count, drop, bytes));
}

void EmitTest(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.operand_count() < 3) return step.Unsupported();
  Value* pointer = step.f.Access(step.operand(1), SpaceOf(step), AccessKind::kAtomic, 8);
  Value* parity = step.Has("parity") ? step.Read(2, Type::kU32)
                                     : ir.CreateTrunc(ir.CreateLShr(step.Read(2, Type::kU64), 63),
                                                      ir.getInt32Ty());
  Value* over = step.f.CallRuntime("consort_rt_mbarrier_test", ir.getInt32Ty(), {pointer, parity});
  step.f.Write(step.operand(0), Type::kPred, ir.CreateIsNotNull(over));
}

}  // namespace

void EmitMbarrier(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!step.OneOf("arrive arrive_drop").empty()) return EmitArrive(step);
  if (!step.OneOf("test_wait try_wait").empty()) return EmitTest(step);
  if (step.Has("pending_count")) {
    if (step.operand_count() != 2) return step.Unsupported();
    Value* state = step.Read(1, Type::kU64);
    step.Write(0, Type::kU32, ir.CreateAnd(ir.CreateTrunc(state, ir.getInt32Ty()), 0xFFFFF));
    return;
  }
  Value* pointer = step.f.Access(step.operand(0), SpaceOf(step), AccessKind::kAtomic, 8);
  if (step.Has("inval")) {
    ir.CreateStore(ir.getInt64(0), pointer);
    return;
  }
  if (step.operand_count() != 2) return step.Unsupported();
  Value* number = step.Read(1, Type::kU32);
  if (step.Has("init")) {
    step.f.CallRuntime("consort_rt_mbarrier_init", ir.getVoidTy(), {pointer, number});
  } else if (!step.OneOf("expect_tx complete_tx").empty()) {
    Value* change = step.Has("expect_tx") ? number : ir.CreateNeg(number);
    step.f.CallRuntime("consort_rt_mbarrier_bytes", ir.getVoidTy(), {pointer, change});
  } else {
    step.Unsupported();
  }
}

// cp.async.mbarrier.arrive: when this thread's copies are over, which they are. Without .noinc the
// arrival was not among those expected, and is added to them first.
void EmitCopyAsyncArrive(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!step.Has("mbarrier") || !step.Has("arrive")) return step.Unsupported();
  Value* pointer = step.f.Access(step.operand(0), step.space(), AccessKind::kAtomic, 8);
  if (!step.Has("noinc")) return;
  Arrive(step, pointer, ir.getInt32(1), ir.getInt32(0), ir.getInt32(0));
}

}  // namespace consort::cpu
