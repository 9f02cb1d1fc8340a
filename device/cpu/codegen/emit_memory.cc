// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_memory.cc: loads, stores, atomics, fences.
//
// Weak accesses are plain LLVM ones; the calls that barriers and shuffles become keep the compiler
// from moving them across. Volatile and relaxed ones are atomic, so that a loop may poll memory.
// Source: PTX ISA 9.0, 8 "Memory Consistency Model", 9.7.9.8 ld, st, 9.7.13 membar, atom, red.
#include <vector>

#include "device/cpu/codegen/emit.h"

namespace consort::cpu {
namespace {

using llvm::AtomicOrdering;
using llvm::Value;
using ptx::Type;

uint32_t VectorWidth(const Step& step) { return step.Has("v4") ? 4 : step.Has("v2") ? 2 : 1; }

bool IsStrong(const Step& step) {
  return !step.OneOf("volatile relaxed acquire release mmio").empty();
}

AtomicOrdering OrderOf(const Step& step, AtomicOrdering otherwise) {
  if (step.Has("acq_rel")) return AtomicOrdering::AcquireRelease;
  if (step.Has("acquire")) return AtomicOrdering::Acquire;
  if (step.Has("release")) return AtomicOrdering::Release;
  return otherwise;
}

struct AtomicRow {
  std::string_view name;
  llvm::AtomicRMWInst::BinOp unsigned_op;
  llvm::AtomicRMWInst::BinOp signed_op;
  llvm::AtomicRMWInst::BinOp float_op;
};

constexpr AtomicRow kAtomicRows[] = {
    {"add", llvm::AtomicRMWInst::Add, llvm::AtomicRMWInst::Add, llvm::AtomicRMWInst::FAdd},
    {"min", llvm::AtomicRMWInst::UMin, llvm::AtomicRMWInst::Min, llvm::AtomicRMWInst::BAD_BINOP},
    {"max", llvm::AtomicRMWInst::UMax, llvm::AtomicRMWInst::Max, llvm::AtomicRMWInst::BAD_BINOP},
    {"inc", llvm::AtomicRMWInst::UIncWrap, llvm::AtomicRMWInst::BAD_BINOP,
     llvm::AtomicRMWInst::BAD_BINOP},
    {"dec", llvm::AtomicRMWInst::UDecWrap, llvm::AtomicRMWInst::BAD_BINOP,
     llvm::AtomicRMWInst::BAD_BINOP},
    {"exch", llvm::AtomicRMWInst::Xchg, llvm::AtomicRMWInst::Xchg, llvm::AtomicRMWInst::BAD_BINOP},
    {"and", llvm::AtomicRMWInst::And, llvm::AtomicRMWInst::And, llvm::AtomicRMWInst::BAD_BINOP},
    {"or", llvm::AtomicRMWInst::Or, llvm::AtomicRMWInst::Or, llvm::AtomicRMWInst::BAD_BINOP},
    {"xor", llvm::AtomicRMWInst::Xor, llvm::AtomicRMWInst::Xor, llvm::AtomicRMWInst::BAD_BINOP},
};

// The bits in memory before a sum of 16-bit floats. LLVM's own loop goes through a bfloat value,
// which makes signalling NaNs quiet: what it compares with is then never what is in memory.
Value* EmitHalfAdd(Step& step, Value* pointer, Value* bits) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  const bool is_bfloat = type == Type::kBf16 || type == Type::kBf16x2;
  const bool is_pair = ptx::TypeBits(type) == 32;
  Value* old = step.f.CallRuntime(
      is_pair ? "consort_rt_atomic_add_halves" : "consort_rt_atomic_add_half", ir.getInt32Ty(),
      {pointer, ir.CreateZExt(bits, ir.getInt32Ty()), ir.getInt32(is_bfloat ? 1 : 0)});
  return ir.CreateTrunc(old, bits->getType());
}

// The value in memory before the operation; null after an error. `address` is the operand's number,
// the values follow it.
Value* EmitReadModifyWrite(Step& step, size_t address) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  const AtomicOrdering order = OrderOf(step, AtomicOrdering::Monotonic);
  Value* pointer =
      step.f.Access(step.operand(address), step.space(), AccessKind::kAtomic, ptx::TypeBytes(type));
  const llvm::Align align(ptx::TypeBytes(type));
  // The threads of a block take turns on one thread of this process: the compiler makes plain
  // instructions of these.
  const llvm::SyncScope::ID scope =
      step.space() == ptx::Space::kShared ? llvm::SyncScope::SingleThread : llvm::SyncScope::System;
  if (type == Type::kB128 && step.OneOf("cas exch").empty()) {
    step.Unsupported();
    return nullptr;
  }
  Value* value = step.Read(address + 1);
  if (step.Has("cas")) {
    if (step.operand_count() != address + 3) {
      step.Unsupported();
      return nullptr;
    }
    llvm::Type* bits = step.f.IntType(ptx::TypeBits(type));
    Value* desired = step.f.Cast(step.Read(address + 2), bits);
    const AtomicOrdering failure = llvm::AtomicCmpXchgInst::getStrongestFailureOrdering(order);
    Value* pair = ir.CreateAtomicCmpXchg(pointer, step.f.Cast(value, bits), desired, align, order,
                                         failure, scope);
    return ir.CreateExtractValue(pair, 0);
  }
  if (step.operand_count() != address + 2) {
    step.Unsupported();
    return nullptr;
  }
  const std::string_view name = step.OneOf("add min max inc dec exch and or xor");
  const bool is_packed = type == Type::kF16x2 || type == Type::kBf16x2;
  const bool is_float = ptx::IsFloat(type) || is_packed;
  // Sums of 16-bit floats keep subnormals, which the instruction has to say.
  const bool is_half = is_float && !step.OneOf("f16 f16x2 bf16 bf16x2").empty();
  if (is_half != step.Has("noftz") || (is_half && name != "add")) {
    step.Unsupported();
    return nullptr;
  }
  if (type == Type::kF32 && step.space() != ptx::Space::kShared) {
    return step.f.CallRuntime("consort_rt_atomic_add_flushed", ir.getFloatTy(), {pointer, value});
  }
  if (is_half) {
    return EmitHalfAdd(step, pointer, step.f.Cast(value, step.f.IntType(ptx::TypeBits(type))));
  }
  for (const AtomicRow& row : kAtomicRows) {
    if (row.name != name) continue;
    const auto operation = is_float              ? row.float_op
                           : ptx::IsSigned(type) ? row.signed_op
                                                 : row.unsigned_op;
    if (operation == llvm::AtomicRMWInst::BAD_BINOP) break;
    return ir.CreateAtomicRMW(operation, pointer, value, align, order, scope);
  }
  step.Unsupported();
  return nullptr;
}

// atom.add and red.add of a vector: the elements one by one, as each is atomic by itself.
void EmitVectorAdd(Step& step, size_t address) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  const uint32_t width = step.Has("v8") ? 8 : VectorWidth(step);
  const bool is_half = type != Type::kF32;
  const bool is_known = type == Type::kF32 || !step.OneOf("f16 f16x2 bf16 bf16x2").empty();
  const ptx::Operand& values = step.operand(address + 1);
  if (!is_known || !step.Has("add") || is_half != step.Has("noftz") || !step.Has("global") ||
      uint64_t{width} * ptx::TypeBytes(type) > 16) {
    return step.Unsupported();
  }
  if (values.elements.size() != width ||
      (address == 1 && step.operand(0).elements.size() != width)) {
    return step.f.FailSyntax("the vector does not fit the instruction");
  }
  const uint32_t bytes = ptx::TypeBytes(type);
  Value* pointer =
      step.f.Access(step.operand(address), step.space(), AccessKind::kAtomic, bytes * width);
  std::vector<Value*> old;
  for (uint32_t i = 0; i < width; ++i) {
    Value* at = ir.CreateConstGEP1_64(ir.getInt8Ty(), pointer, uint64_t{i} * bytes);
    Value* value = step.f.Read(values.elements[i], type);
    old.push_back(
        is_half
            ? step.f.Cast(EmitHalfAdd(step, at, step.f.Cast(value, step.f.IntType(bytes * 8))),
                          step.f.IrType(type))
            : step.f.CallRuntime("consort_rt_atomic_add_flushed", ir.getFloatTy(), {at, value}));
  }
  // Destinations may be sources of later elements, so they are written last.
  for (uint32_t i = 0; address == 1 && i < width; ++i) {
    step.f.Write(step.operand(0).elements[i], type, old[i]);
  }
}

bool IsVector(const Step& step) { return !step.OneOf("v2 v4 v8").empty(); }

}  // namespace

void EmitLoad(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  llvm::Type* bits = step.f.IntType(ptx::TypeBits(type));
  const uint32_t bytes = ptx::TypeBytes(type);
  const uint32_t width = VectorWidth(step);
  Value* pointer = step.f.Access(step.operand(1), step.space(), AccessKind::kRead, bytes * width);
  const ptx::Operand& to = ElementOfOne(step.operand(0));
  auto finish = [&](const ptx::Operand& where, Value* value) {
    step.f.Write(where, type, step.f.Cast(value, step.f.IrType(type)));
  };
  if (width > 1) {
    if (to.kind != ptx::OperandKind::kVector || to.elements.size() != width) {
      step.f.FailSyntax("the vector does not fit the instruction");
      return;
    }
    Value* vector = ir.CreateAlignedLoad(llvm::FixedVectorType::get(bits, width), pointer,
                                         llvm::Align(bytes * width), step.Has("volatile"));
    for (uint32_t i = 0; i < width; ++i) {
      finish(to.elements[i], ir.CreateExtractElement(vector, uint64_t{i}));
    }
    return;
  }
  llvm::LoadInst* load = ir.CreateAlignedLoad(bits, pointer, llvm::Align(bytes));
  if (IsStrong(step) && bytes <= 8) {
    load->setVolatile(step.Has("volatile"));
    load->setAtomic(OrderOf(step, AtomicOrdering::Monotonic));
  }
  if (type == Type::kB128) {
    step.f.WritePacked(to, type, load);
  } else {
    finish(to, load);
  }
}

void EmitStore(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  llvm::Type* bits = step.f.IntType(ptx::TypeBits(type));
  const uint32_t bytes = ptx::TypeBytes(type);
  const uint32_t width = VectorWidth(step);
  Value* pointer = step.f.Access(step.operand(0), step.space(), AccessKind::kWrite, bytes * width);
  const ptx::Operand& from = step.operand(1);
  if (width > 1) {
    if (from.kind != ptx::OperandKind::kVector || from.elements.size() != width) {
      step.f.FailSyntax("the vector does not fit the instruction");
      return;
    }
    Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(bits, width));
    for (uint32_t i = 0; i < width; ++i) {
      vector = ir.CreateInsertElement(
          vector, step.f.Cast(step.f.Read(from.elements[i], type), bits), uint64_t{i});
    }
    ir.CreateAlignedStore(vector, pointer, llvm::Align(bytes * width), step.Has("volatile"));
    return;
  }
  llvm::StoreInst* store = ir.CreateAlignedStore(step.f.Cast(step.f.ReadPacked(from, type), bits),
                                                 pointer, llvm::Align(bytes));
  if (IsStrong(step) && bytes <= 8) {
    store->setVolatile(step.Has("volatile"));
    store->setAtomic(OrderOf(step, AtomicOrdering::Monotonic));
  }
}

void EmitAtomic(Step& step) {
  if (step.types.size() != 1) return step.Unsupported();
  if (IsVector(step)) return EmitVectorAdd(step, 1);
  Value* old = EmitReadModifyWrite(step, 1);
  if (old == nullptr) return;
  step.Write(step.f.Cast(old, step.f.IrType(step.type())));
}

void EmitReduction(Step& step) {
  if (step.types.size() != 1 || !step.OneOf("cas exch").empty()) return step.Unsupported();
  if (IsVector(step)) return EmitVectorAdd(step, 0);
  EmitReadModifyWrite(step, 0);
}

void EmitFence(Step& step) { step.ir().CreateFence(AtomicOrdering::SequentiallyConsistent); }

void EmitPrefetch(Step& step) {
  // A hint; the address is still checked for form.
  step.f.Pointer(step.operand(0), step.space());
}

// A policy is a hint to caches; what its bits are is nobody's business.
void EmitCreatePolicy(Step& step) {
  const bool is_range = step.Has("range");
  if (is_range) step.f.Pointer(step.operand(1), step.space());
  for (size_t i = is_range ? 2 : 1; i < step.operand_count(); ++i) {
    step.Read(i, step.Has("fractional") ? Type::kF32 : step.Has("cvt") ? Type::kU64 : Type::kU32);
  }
  step.Write(step.ir().getInt64(0));
}

// cp.async copies at once, which every order of the asynchronous copy allows.
void EmitCopyAsync(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const ptx::Operand& size = step.operand(2);
  const bool is_size = size.kind == ptx::OperandKind::kInteger &&
                       (size.integer == 4 || size.integer == 8 || size.integer == 16);
  if (!step.Has("async") || !is_size) return step.Unsupported();
  const uint32_t bytes = static_cast<uint32_t>(size.integer);
  Value* to = step.f.Access(step.operand(0), ptx::Space::kShared, AccessKind::kWrite, bytes);
  Value* from = step.f.Pointer(step.operand(1), ptx::Space::kGlobal);
  // As nvcc writes it, also where nothing is left out.
  const bool is_whole =
      step.operand_count() == 3 || (step.operand(3).kind == ptx::OperandKind::kInteger &&
                                    step.operand(3).integer == size.integer);
  if (!is_whole) {
    // Only src-size bytes are read, or none if the source is to be ignored; the rest of the
    // destination becomes zero.
    Value* const all = ir.getInt32(bytes);
    Value* const source_bytes =
        step.f.IsPredicate(step.operand(3))
            ? ir.CreateSelect(step.Read(3, Type::kPred), ir.getInt32(0), all)
            : ir.CreateBinaryIntrinsic(llvm::Intrinsic::umin, step.Read(3, Type::kU32), all);
    // Byte by byte: any number of them may be wanted.
    for (uint32_t i = 0; step.f.shared().check_accesses && i < bytes; ++i) {
      step.f.CheckAccess(ir.CreateConstGEP1_64(ir.getInt8Ty(), from, i), ptx::Space::kGlobal,
                         AccessKind::kRead, 1, ir.CreateICmpULT(ir.getInt32(i), source_bytes));
    }
    step.f.CallRuntime("consort_rt_copy_padded", ir.getVoidTy(),
                       {to, from, source_bytes, ir.getInt32(bytes)});
    return;
  }
  step.f.CheckAccess(from, ptx::Space::kGlobal, AccessKind::kRead, bytes);
  const llvm::Align align(bytes);
  llvm::Type* type = step.f.IntType(bytes * 8);
  if (bytes == 16) type = llvm::FixedVectorType::get(ir.getInt64Ty(), 2);
  ir.CreateAlignedStore(ir.CreateAlignedLoad(type, from, align), to, align);
}

void EmitCopyAsyncWait(Step& step) {
  if (!step.Has("async")) step.Unsupported();
}

}  // namespace consort::cpu
