// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_bits.cc: bit counting, bit fields, permutes, three-input logic, funnel
// shift. Source: PTX ISA 9.0, 9.7.1.14 to 9.7.1.22, 9.7.8.6, 9.7.8.8, 9.7.9.7.
#include "device/cpu/codegen/emit.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

// value << amount or >> amount, 0 when the amount reaches the width.
Value* ShiftOrZero(Step& step, Value* value, Value* amount, bool left) {
  llvm::IRBuilder<>& ir = step.ir();
  llvm::Type* type = value->getType();
  Value* bits = llvm::ConstantInt::get(type, type->getIntegerBitWidth());
  Value* inside = ir.CreateICmpULT(amount, bits);
  Value* zero = llvm::ConstantInt::get(type, 0);
  Value* safe = ir.CreateSelect(inside, amount, zero);
  Value* shifted = left ? ir.CreateShl(value, safe) : ir.CreateLShr(value, safe);
  return ir.CreateSelect(inside, shifted, zero);
}

// `length` ones at the bottom; all ones when length reaches the width.
Value* LowOnes(Step& step, Value* length) {
  Value* one = llvm::ConstantInt::get(length->getType(), 1);
  return step.ir().CreateSub(ShiftOrZero(step, one, length, true), one);
}

}  // namespace

void EmitBitCount(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = step.Read(1);
  Value* count = step.instruction.opcode == "popc"
                     ? ir.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, a)
                     : ir.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, a, ir.getFalse());
  step.Write(0, Type::kU32, ir.CreateZExtOrTrunc(count, ir.getInt32Ty()));
}

void EmitBitReverse(Step& step) {
  step.Write(step.ir().CreateUnaryIntrinsic(llvm::Intrinsic::bitreverse, step.Read(1)));
}

void EmitFindHighBit(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const uint32_t bits = ptx::TypeBits(step.type());
  Value* a = step.Read(1);
  if (ptx::IsSigned(step.type())) {
    // The highest bit that differs from the sign.
    a = ir.CreateXor(a, ir.CreateAShr(a, bits - 1));
  }
  Value* zeros = ir.CreateZExtOrTrunc(
      ir.CreateBinaryIntrinsic(llvm::Intrinsic::ctlz, a, ir.getFalse()), ir.getInt32Ty());
  Value* position = step.Has("shiftamt") ? zeros : ir.CreateSub(ir.getInt32(bits - 1), zeros);
  Value* none = ir.CreateIsNull(a);
  step.Write(0, Type::kU32, ir.CreateSelect(none, ir.getInt32(0xFFFFFFFF), position));
}

// The place of the |offset|-th set bit from `base` on, upwards or downwards; of offset 0 `base` if
// it is set.
void EmitFindNthSet(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* const mask = step.Read(1);
  Value* const base = step.Read(2, Type::kU32);
  Value* const offset = step.Read(3, Type::kS32);
  Value* const zero = ir.getInt32(0);
  Value* const is_inside = ir.CreateICmpULT(base, ir.getInt32(32));
  Value* const is_down = ir.CreateICmpSLT(offset, zero);
  Value* const is_here = ir.CreateIsNull(offset);
  // Downwards is upwards in the mirror.
  Value* const first = ir.CreateSelect(
      is_inside, ir.CreateSelect(is_down, ir.CreateSub(ir.getInt32(31), base), base), zero);
  Value* const turned =
      ir.CreateSelect(is_down, ir.CreateUnaryIntrinsic(llvm::Intrinsic::bitreverse, mask), mask);
  Value* const from = ir.CreateSelect(is_here, ir.CreateShl(ir.getInt32(1), first),
                                      ir.CreateShl(ir.getInt32(0xFFFFFFFF), first));
  Value* const bits = ir.CreateSelect(is_inside, ir.CreateAnd(turned, from), zero);
  Value* wanted = ir.CreateSelect(is_down, ir.CreateNeg(offset), offset);
  wanted = ir.CreateSelect(is_here, ir.getInt32(1), wanted);
  Value* const is_there =
      ir.CreateICmpULE(wanted, ir.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, bits));
  // By halves: into the upper one if the lower has too few.
  Value* place = zero;
  for (uint32_t width = 16; width != 0; width /= 2) {
    Value* const low = ir.CreateAnd(ir.CreateLShr(bits, place), (uint64_t{1} << width) - 1);
    Value* const count = ir.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, low);
    Value* const is_above = ir.CreateICmpUGT(wanted, count);
    wanted = ir.CreateSub(wanted, ir.CreateSelect(is_above, count, zero));
    place = ir.CreateAdd(place, ir.CreateSelect(is_above, ir.getInt32(width), zero));
  }
  // Beyond the last bit it is not there, but is no number to shift by.
  place = ir.CreateAnd(place, 31);
  place = ir.CreateSelect(is_down, ir.CreateSub(ir.getInt32(31), place), place);
  step.Write(ir.CreateSelect(is_there, place, ir.getInt32(0xFFFFFFFF)));
}

void EmitBitFieldExtract(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const Type type = step.type();
  const uint32_t bits = ptx::TypeBits(type);
  Value* a = step.Read(1);
  llvm::Type* ir_type = a->getType();
  if (step.instruction.opcode == "szext") {
    // Keeps the low n bits; .clamp limits n to 32, .wrap takes it modulo 32.
    Value* n = step.Read(2, Type::kU32);
    if (step.Has("wrap")) n = ir.CreateAnd(n, 31);
    n = ir.CreateBinaryIntrinsic(llvm::Intrinsic::umin, n, ir.getInt32(32));
    Value* up = ir.CreateSub(ir.getInt32(32), n);
    Value* safe = ir.CreateAnd(up, 31);
    Value* high = ir.CreateShl(a, safe);
    Value* field = ptx::IsSigned(type) ? ir.CreateAShr(high, safe) : ir.CreateLShr(high, safe);
    step.Write(ir.CreateSelect(ir.CreateIsNull(n), ir.getInt32(0), field));
    return;
  }
  // Position and length are taken modulo 256 (9.7.1.19).
  Value* position = ir.CreateZExt(ir.CreateAnd(step.Read(2, Type::kU32), 0xFF), step.f.IntType(64));
  Value* length = ir.CreateZExt(ir.CreateAnd(step.Read(3, Type::kU32), 0xFF), step.f.IntType(64));
  position = ir.CreateZExtOrTrunc(position, ir_type);
  length = ir.CreateZExtOrTrunc(length, ir_type);
  Value* field = ir.CreateAnd(ShiftOrZero(step, a, position, false), LowOnes(step, length));
  if (ptx::IsSigned(type)) {
    // Bits above the field are copies of bit min(position + length - 1, msb), or 0 for length 0.
    Value* msb = llvm::ConstantInt::get(ir_type, bits - 1);
    Value* last = ir.CreateSub(ir.CreateAdd(position, length), llvm::ConstantInt::get(ir_type, 1));
    last = ir.CreateBinaryIntrinsic(llvm::Intrinsic::umin, last, msb);
    Value* is_empty = ir.CreateIsNull(length);
    last = ir.CreateSelect(is_empty, msb, last);
    Value* sign = ir.CreateTrunc(ir.CreateLShr(a, last), ir.getInt1Ty());
    Value* fill = ir.CreateSExt(ir.CreateAnd(sign, ir.CreateNot(is_empty)), ir_type);
    // When the field reaches past the msb, the copied sign starts at the end of what is left of it.
    Value* available =
        ir.CreateSelect(ir.CreateICmpULT(position, llvm::ConstantInt::get(ir_type, bits)),
                        ir.CreateSub(llvm::ConstantInt::get(ir_type, bits), position),
                        llvm::ConstantInt::get(ir_type, 0));
    Value* kept = ir.CreateBinaryIntrinsic(llvm::Intrinsic::umin, length, available);
    field = ir.CreateOr(field, ir.CreateAnd(fill, ir.CreateNot(LowOnes(step, kept))));
  }
  step.Write(field);
}

void EmitBitFieldInsert(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* a = step.Read(1);
  Value* b = step.Read(2);
  llvm::Type* ir_type = a->getType();
  Value* position = ir.CreateZExtOrTrunc(ir.CreateAnd(step.Read(3, Type::kU32), 0xFF), ir_type);
  Value* length = ir.CreateZExtOrTrunc(ir.CreateAnd(step.Read(4, Type::kU32), 0xFF), ir_type);
  Value* mask = ShiftOrZero(step, LowOnes(step, length), position, true);
  Value* placed = ir.CreateAnd(ShiftOrZero(step, a, position, true), mask);
  step.Write(ir.CreateOr(placed, ir.CreateAnd(b, ir.CreateNot(mask))));
}

void EmitBitMask(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* position = step.Read(1);
  Value* length = step.Read(2);
  if (step.Has("wrap")) {
    position = ir.CreateAnd(position, 31);
    length = ir.CreateAnd(length, 31);
  } else if (!step.Has("clamp")) {
    return step.Unsupported();
  }
  step.Write(ShiftOrZero(step, LowOnes(step, length), position, true));
}

void EmitPermute(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (!step.OneOf("f4e b4e rc8 ecl ecr rc16").empty()) {
    // Modes select by the low two bits of c: byte i of the result takes byte SELECT of {b, a}.
    struct Mode {
      std::string_view name;
      uint8_t bytes[4][4];  // by c, then result byte 0..3
    };
    static constexpr Mode kModes[] = {
        {"f4e", {{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}}},
        {"b4e", {{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}}},
        {"rc8", {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}}},
        {"ecl", {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}}},
        {"ecr", {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}}},
        {"rc16", {{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}}},
    };
    Value* both = ir.CreateOr(ir.CreateZExt(step.Read(1), ir.getInt64Ty()),
                              ir.CreateShl(ir.CreateZExt(step.Read(2), ir.getInt64Ty()), 32));
    Value* select = ir.CreateAnd(step.Read(3), 3);
    for (const Mode& mode : kModes) {
      if (!step.Has(mode.name)) continue;
      Value* result = nullptr;
      for (uint32_t c = 0; c < 4; ++c) {
        Value* joined = ir.getInt32(0);
        for (uint32_t i = 0; i < 4; ++i) {
          Value* byte = ir.CreateAnd(ir.CreateLShr(both, uint64_t{mode.bytes[c][i]} * 8), 0xFF);
          joined = ir.CreateOr(joined, ir.CreateShl(ir.CreateTrunc(byte, ir.getInt32Ty()), i * 8));
        }
        result = result == nullptr
                     ? joined
                     : ir.CreateSelect(ir.CreateICmpEQ(select, ir.getInt32(c)), joined, result);
      }
      step.Write(result);
    }
    return;
  }
  Value* both = ir.CreateOr(ir.CreateZExt(step.Read(1), ir.getInt64Ty()),
                            ir.CreateShl(ir.CreateZExt(step.Read(2), ir.getInt64Ty()), 32));
  Value* selector = step.Read(3);
  Value* result = ir.getInt32(0);
  for (uint32_t i = 0; i < 4; ++i) {
    Value* nibble = ir.CreateLShr(selector, i * 4);
    Value* shift = ir.CreateZExt(ir.CreateShl(ir.CreateAnd(nibble, 7), 3), ir.getInt64Ty());
    Value* byte = ir.CreateTrunc(ir.CreateLShr(both, shift), ir.getInt8Ty());
    // Bit 3 of the nibble replicates the byte's sign instead.
    Value* replicate = ir.CreateTrunc(ir.CreateLShr(nibble, 3), ir.getInt1Ty());
    byte = ir.CreateSelect(replicate, ir.CreateAShr(byte, 7), byte);
    result = ir.CreateOr(result, ir.CreateShl(ir.CreateZExt(byte, ir.getInt32Ty()), i * 8));
  }
  step.Write(result);
}

void EmitLogic3(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const ptx::Operand& table = step.operand(4);
  if (table.kind != ptx::OperandKind::kInteger || table.integer < 0 || table.integer > 255) {
    step.f.FailSyntax("lop3 takes a constant of 0 to 255");
    return;
  }
  Value* a = step.Read(1);
  Value* b = step.Read(2);
  Value* c = step.Read(3);
  Value* result = ir.getInt32(0);
  // Bit (4a + 2b + c) of the table is the result for those three input bits.
  for (uint32_t i = 0; i < 8; ++i) {
    if ((table.integer >> i & 1) == 0) continue;
    Value* term = i & 4 ? a : ir.CreateNot(a);
    term = ir.CreateAnd(term, i & 2 ? b : ir.CreateNot(b));
    term = ir.CreateAnd(term, i & 1 ? c : ir.CreateNot(c));
    result = ir.CreateOr(result, term);
  }
  step.Write(result);
}

void EmitFunnelShift(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.OneOf("l r").empty() || step.OneOf("clamp wrap").empty()) return step.Unsupported();
  // Operand 1 is the low word, operand 2 the high one.
  Value* both = ir.CreateOr(ir.CreateZExt(step.Read(1), ir.getInt64Ty()),
                            ir.CreateShl(ir.CreateZExt(step.Read(2), ir.getInt64Ty()), 32));
  Value* amount = step.Read(3, Type::kU32);
  amount = step.Has("wrap")
               ? ir.CreateAnd(amount, 31)
               : ir.CreateBinaryIntrinsic(llvm::Intrinsic::umin, amount, ir.getInt32(32));
  Value* wide = ir.CreateZExt(amount, ir.getInt64Ty());
  Value* result =
      step.Has("l") ? ir.CreateLShr(ir.CreateShl(both, wide), 32) : ir.CreateLShr(both, wide);
  step.Write(ir.CreateTrunc(result, ir.getInt32Ty()));
}

}  // namespace consort::cpu
