// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_video.cc: arithmetic of bytes and halves of registers.
//
// All is computed in 72 bits, where no intermediate result of the ISA's definitions is cut.
// Source: PTX ISA 9.0, 9.7.10 "Scalar Video Instructions", 9.7.11 "SIMD Video Instructions".
#include <vector>

#include "device/cpu/codegen/emit.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using llvm::Intrinsic::ID;
using ptx::Operand;
using ptx::Type;

constexpr uint32_t kWide = 72;

llvm::Type* WideType(Step& step) { return step.f.IntType(kWide); }

// Bits `first` to `first + bits` of a 32-bit register, extended.
Value* Part(Step& step, Value* value, uint32_t first, uint32_t bits, bool is_signed) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* part = ir.CreateTrunc(ir.CreateLShr(value, first), step.f.IntType(bits));
  return is_signed ? ir.CreateSExt(part, WideType(step)) : ir.CreateZExt(part, WideType(step));
}

Value* Register(Step& step, size_t index) {
  Operand whole = step.operand(index);
  whole.selector = {};
  return step.f.Read(whole, Type::kB32);
}

uint32_t BitsOf(std::string_view selector) {
  return selector.empty() ? 32 : selector[0] == 'b' ? 8 : 16;
}

// The first bit of the part that "b2" or "h1" names.
uint32_t FirstBit(std::string_view selector) {
  return selector.empty() ? 0 : static_cast<uint32_t>(selector[1] - '0') * BitsOf(selector);
}

// A source of a scalar instruction: the part that it names.
Value* Source(Step& step, size_t index, Type type) {
  const std::string_view selector = step.operand(index).selector;
  if (selector.size() > 2 || FirstBit(selector) >= 32) {
    step.Unsupported();
    return llvm::Constant::getNullValue(WideType(step));
  }
  return Part(step, Register(step, index), FirstBit(selector), BitsOf(selector),
              ptx::IsSigned(type));
}

Value* Clamp(Step& step, Value* value, uint32_t bits, bool is_signed) {
  llvm::IRBuilder<>& ir = step.ir();
  const llvm::APInt low =
      is_signed ? llvm::APInt::getSignedMinValue(bits).sext(kWide) : llvm::APInt(kWide, 0);
  const llvm::APInt high = is_signed ? llvm::APInt::getSignedMaxValue(bits).zext(kWide)
                                     : llvm::APInt::getMaxValue(bits).zext(kWide);
  value = ir.CreateSelect(ir.CreateICmpSLT(value, ir.getInt(low)), ir.getInt(low), value);
  return ir.CreateSelect(ir.CreateICmpSGT(value, ir.getInt(high)), ir.getInt(high), value);
}

Value* Less(Step& step, Value* a, Value* b) {
  llvm::IRBuilder<>& ir = step.ir();
  return ir.CreateSelect(ir.CreateICmpSLT(a, b), a, b);
}

Value* More(Step& step, Value* a, Value* b) {
  llvm::IRBuilder<>& ir = step.ir();
  return ir.CreateSelect(ir.CreateICmpSGT(a, b), a, b);
}

Value* Compared(Step& step, Value* a, Value* b) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view name = step.OneOf("eq ne lt le gt ge");
  const llvm::CmpInst::Predicate predicate = name == "eq"   ? llvm::CmpInst::ICMP_EQ
                                             : name == "ne" ? llvm::CmpInst::ICMP_NE
                                             : name == "lt" ? llvm::CmpInst::ICMP_SLT
                                             : name == "le" ? llvm::CmpInst::ICMP_SLE
                                             : name == "gt" ? llvm::CmpInst::ICMP_SGT
                                                            : llvm::CmpInst::ICMP_SGE;
  if (name.empty()) step.Unsupported();
  return ir.CreateZExt(ir.CreateICmp(predicate, a, b), WideType(step));
}

// What the instruction does with two extended parts.
Value* Operate(Step& step, Value* a, Value* b) {
  llvm::IRBuilder<>& ir = step.ir();
  std::string_view name = step.instruction.opcode.substr(1);
  if (name.back() == '2' || name.back() == '4') name.remove_suffix(1);
  if (name == "add") return ir.CreateAdd(a, b);
  if (name == "sub") return ir.CreateSub(a, b);
  if (name == "min") return Less(step, a, b);
  if (name == "max") return More(step, a, b);
  if (name == "set") return Compared(step, a, b);
  if (name == "absdiff") return ir.CreateSub(More(step, a, b), Less(step, a, b));
  if (name == "avrg") {
    // Halves are rounded away from zero.
    Value* sum = ir.CreateAdd(a, b);
    Value* positive = ir.CreateICmpSGE(sum, llvm::ConstantInt::get(WideType(step), 0));
    return ir.CreateAShr(ir.CreateAdd(sum, ir.CreateZExt(positive, WideType(step))), 1);
  }
  // A shift: by 32 at most, or modulo 32.
  Value* amount = step.Has("wrap") ? ir.CreateAnd(b, 31)
                                   : Less(step, b, llvm::ConstantInt::get(WideType(step), 32));
  return name == "shl" ? ir.CreateShl(a, amount) : ir.CreateAShr(a, amount);
}

Value* Narrow(Step& step, Value* wide) {
  return step.ir().CreateTrunc(wide, step.ir().getInt32Ty());
}

}  // namespace

void EmitVideo(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool is_set = step.instruction.opcode == "vset";
  const Type to = is_set ? Type::kU32 : step.types[0];
  const Type a_type = step.types[is_set ? 0 : 1];
  const Type b_type = step.types[is_set ? 1 : 2];
  if (step.types.size() != (is_set ? 2u : 3u)) return step.Unsupported();
  const std::string_view opcode = step.instruction.opcode;
  if ((opcode == "vshl" || opcode == "vshr") && step.OneOf("clamp wrap").empty()) {
    return step.Unsupported();
  }
  const Operand& destination = step.operand(0);
  const std::string_view selector = destination.selector;
  const std::string_view second = step.OneOf("add min max");
  if ((step.operand_count() == 4) != (!second.empty() || !selector.empty()) ||
      (!second.empty() && !selector.empty()) || selector.size() > 2 || FirstBit(selector) >= 32) {
    return step.Unsupported();
  }
  Value* value = Operate(step, Source(step, 1, a_type), Source(step, 2, b_type));
  if (step.Has("sat")) value = Clamp(step, value, BitsOf(selector), ptx::IsSigned(to));
  Value* result = Narrow(step, value);
  if (!second.empty()) {
    Value* c = Register(step, 3);
    const bool is_signed = ptx::IsSigned(to);
    const ID less = is_signed ? llvm::Intrinsic::smin : llvm::Intrinsic::umin;
    const ID more = is_signed ? llvm::Intrinsic::smax : llvm::Intrinsic::umax;
    result = second == "add" ? ir.CreateAdd(result, c)
                             : ir.CreateBinaryIntrinsic(second == "min" ? less : more, result, c);
  } else if (!selector.empty()) {
    const llvm::APInt mask =
        llvm::APInt::getBitsSet(32, FirstBit(selector), FirstBit(selector) + BitsOf(selector));
    Value* placed = ir.CreateAnd(ir.CreateShl(result, FirstBit(selector)), ir.getInt(mask));
    result = ir.CreateOr(placed, ir.CreateAnd(Register(step, 3), ir.getInt(~mask)));
  }
  Operand whole = destination;
  whole.selector = {};
  step.f.Write(whole, Type::kB32, result);
}

void EmitVideoMad(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.types.size() != 3) return step.Unsupported();
  const bool is_signed = ptx::IsSigned(step.types[1]) || ptx::IsSigned(step.types[2]);
  Value* product = ir.CreateMul(Source(step, 1, step.types[1]), Source(step, 2, step.types[2]));
  Value* sum = ir.CreateAdd(product, Part(step, Register(step, 3), 0, 32, is_signed));
  if (step.Has("po")) sum = ir.CreateAdd(sum, llvm::ConstantInt::get(WideType(step), 1));
  const uint64_t shift = step.Has("shr7") ? 7 : step.Has("shr15") ? 15 : 0;
  sum = ir.CreateAShr(sum, shift);
  if (step.Has("sat")) sum = Clamp(step, sum, 32, is_signed);
  step.Write(0, Type::kB32, Narrow(step, sum));
}

// The parts of {b, a} that a selector such as "h10" or "b7654" names, the lowest first.
std::vector<uint32_t> PartsOf(std::string_view selector, uint32_t count, uint32_t otherwise) {
  std::vector<uint32_t> parts;
  for (uint32_t i = 0; i < count; ++i) {
    parts.push_back(selector.empty() ? otherwise + i
                                     : static_cast<uint32_t>(selector[count - i] - '0'));
  }
  return parts;
}

void EmitVideoParts(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool is_set = step.instruction.opcode.starts_with("vset");
  const uint32_t count = step.instruction.opcode.back() == '2' ? 2 : 4;
  const uint32_t bits = 32 / count;
  if (step.types.size() != (is_set ? 2u : 3u)) return step.Unsupported();
  const Type to = is_set ? Type::kU32 : step.types[0];
  const Type types[2] = {step.types[is_set ? 0 : 1], step.types[is_set ? 1 : 2]};
  Value* registers[2] = {Register(step, 1), Register(step, 2)};
  std::vector<uint32_t> parts[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::string_view selector = step.operand(1 + i).selector;
    if (!selector.empty() &&
        (selector.size() != count + 1 || selector[0] != (count == 2 ? 'h' : 'b'))) {
      return step.Unsupported();
    }
    parts[i] = PartsOf(selector, count, i == 0 ? 0 : count);
    for (const uint32_t part : parts[i]) {
      if (part >= 2 * count) return step.Unsupported();
    }
  }
  // Which parts of the result are the instruction's; the others are those of c.
  const std::string_view mask = step.operand(0).selector;
  std::vector<bool> chosen(count, mask.empty());
  for (size_t i = 1; i < mask.size(); ++i) {
    const auto part = static_cast<uint32_t>(mask[i] - '0');
    if (part >= count) return step.Unsupported();
    chosen[part] = true;
  }
  Value* c = Register(step, 3);
  Value* result = step.Has("add") ? c : static_cast<Value*>(ir.getInt32(0));
  for (uint32_t i = 0; i < count; ++i) {
    Value* sources[2];
    for (size_t k = 0; k < 2; ++k) {
      const uint32_t part = parts[k][i];
      sources[k] =
          Part(step, registers[part / count], part % count * bits, bits, ptx::IsSigned(types[k]));
    }
    Value* value = Operate(step, sources[0], sources[1]);
    if (step.Has("sat")) value = Clamp(step, value, bits, ptx::IsSigned(to));
    if (step.Has("add")) {
      if (chosen[i]) result = ir.CreateAdd(result, Narrow(step, value));
      continue;
    }
    const llvm::APInt mask_bits = llvm::APInt::getBitsSet(32, i * bits, (i + 1) * bits);
    Value* from = chosen[i] ? ir.CreateShl(Narrow(step, value), uint64_t{i} * bits) : c;
    result = ir.CreateOr(result, ir.CreateAnd(from, ir.getInt(mask_bits)));
  }
  Operand whole = step.operand(0);
  whole.selector = {};
  step.f.Write(whole, Type::kB32, result);
}

}  // namespace consort::cpu
