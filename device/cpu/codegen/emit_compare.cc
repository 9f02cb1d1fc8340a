// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_compare.cc: comparison and selection.
// Source: PTX ISA 9.0, 9.3 "Comparisons", 9.7.6, 9.7.7.
#include "device/cpu/codegen/emit.h"
#include "device/cpu/codegen/float_helpers.h"

namespace consort::cpu {
namespace {

using llvm::CmpInst;
using llvm::Value;
using ptx::Type;

struct CompareRow {
  std::string_view name;
  CmpInst::Predicate signed_ints;
  CmpInst::Predicate unsigned_ints;
  CmpInst::Predicate floats;
};

constexpr CmpInst::Predicate kNotThere = CmpInst::BAD_ICMP_PREDICATE;

constexpr CompareRow kCompareRows[] = {
    {"eq", CmpInst::ICMP_EQ, CmpInst::ICMP_EQ, CmpInst::FCMP_OEQ},
    {"ne", CmpInst::ICMP_NE, CmpInst::ICMP_NE, CmpInst::FCMP_ONE},
    {"lt", CmpInst::ICMP_SLT, CmpInst::ICMP_ULT, CmpInst::FCMP_OLT},
    {"le", CmpInst::ICMP_SLE, CmpInst::ICMP_ULE, CmpInst::FCMP_OLE},
    {"gt", CmpInst::ICMP_SGT, CmpInst::ICMP_UGT, CmpInst::FCMP_OGT},
    {"ge", CmpInst::ICMP_SGE, CmpInst::ICMP_UGE, CmpInst::FCMP_OGE},
    {"lo", kNotThere, CmpInst::ICMP_ULT, kNotThere},
    {"ls", kNotThere, CmpInst::ICMP_ULE, kNotThere},
    {"hi", kNotThere, CmpInst::ICMP_UGT, kNotThere},
    {"hs", kNotThere, CmpInst::ICMP_UGE, kNotThere},
    {"equ", kNotThere, kNotThere, CmpInst::FCMP_UEQ},
    {"neu", kNotThere, kNotThere, CmpInst::FCMP_UNE},
    {"ltu", kNotThere, kNotThere, CmpInst::FCMP_ULT},
    {"leu", kNotThere, kNotThere, CmpInst::FCMP_ULE},
    {"gtu", kNotThere, kNotThere, CmpInst::FCMP_UGT},
    {"geu", kNotThere, kNotThere, CmpInst::FCMP_UGE},
    {"num", kNotThere, kNotThere, CmpInst::FCMP_ORD},
    {"nan", kNotThere, kNotThere, CmpInst::FCMP_UNO},
};

bool IsPacked(Type type) { return type == Type::kF16x2 || type == Type::kBf16x2; }

// The comparison of operands 1 and 2 as `type`: an i1, or a pair of them for packed types.
Value* Compare(Step& step, Type type) {
  // The comparison is the first modifier; `and`, `or` and `xor` after it join a predicate.
  const std::string_view name = step.instruction.modifiers[0];
  for (const CompareRow& row : kCompareRows) {
    if (row.name != name) continue;
    const bool is_float = ptx::IsFloat(type) || IsPacked(type);
    const CmpInst::Predicate predicate = is_float              ? row.floats
                                         : ptx::IsSigned(type) ? row.signed_ints
                                                               : row.unsigned_ints;
    if (predicate == kNotThere) break;
    Value* a = step.Read(1, type);
    Value* b = step.Read(2, type);
    if (step.Has("ftz")) {
      a = FlushSubnormal(step, a);
      b = FlushSubnormal(step, b);
    }
    return is_float ? step.ir().CreateFCmp(predicate, a, b) : step.ir().CreateICmp(predicate, a, b);
  }
  step.Unsupported();
  return llvm::Constant::getNullValue(IsPacked(type)
                                          ? llvm::FixedVectorType::get(step.ir().getInt1Ty(), 2)
                                          : static_cast<llvm::Type*>(step.ir().getInt1Ty()));
}

Value* Join(Step& step, Value* compared, Value* with) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view name = step.OneOf("and or xor");
  if (name == "and") return ir.CreateAnd(compared, with);
  if (name == "or") return ir.CreateOr(compared, with);
  return ir.CreateXor(compared, with);
}

}  // namespace

void EmitSetp(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const bool joins = !step.OneOf("and or xor").empty();
  if (joins != (step.operand_count() == 4)) return step.Unsupported();
  Value* compared = Compare(step, step.type());
  Value* with = joins ? step.Read(3, Type::kPred) : nullptr;
  const ptx::Operand& to = step.operand(0);
  const bool is_pair = to.kind == ptx::OperandKind::kPair;
  // p|q: q gets the complement of the comparison, joined in the same way.
  // Of packed halves p gets the lower one's comparison and q the upper one's.
  const bool is_packed = IsPacked(step.type());
  if (is_packed && !is_pair) return step.Unsupported();
  Value* first = is_packed ? ir.CreateExtractElement(compared, uint64_t{0}) : compared;
  Value* second =
      is_packed ? ir.CreateExtractElement(compared, uint64_t{1}) : ir.CreateNot(compared);
  if (joins) first = Join(step, first, with);
  if (joins) second = Join(step, second, with);
  step.f.Write(is_pair ? to.elements[0] : to, Type::kPred, first);
  if (is_pair) step.f.Write(to.elements[1], Type::kPred, second);
}

void EmitSet(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.types.size() != 2) return step.Unsupported();
  const bool joins = !step.OneOf("and or xor").empty();
  if (joins != (step.operand_count() == 4)) return step.Unsupported();
  const Type to = step.types[0];
  llvm::Type* type = step.f.IrType(to);
  Value* compared = Compare(step, step.types[1]);
  if (IsPacked(step.types[1])) {
    // Each half of the result is the answer for that half.
    if (joins || (to != step.types[1] && ptx::IsFloat(to)) || ptx::TypeBits(to) != 32) {
      return step.Unsupported();
    }
    auto* halves = llvm::FixedVectorType::get(step.f.IntType(16), 2);
    step.Write(0, to,
               IsPacked(to) ? ir.CreateUIToFP(compared, type)
                            : ir.CreateBitCast(ir.CreateSExt(compared, halves), type));
    return;
  }
  if (joins) compared = Join(step, compared, step.Read(3, Type::kPred));
  if (IsPacked(to)) return step.Unsupported();
  // True is 1.0 for a float destination and all ones for an integer one.
  Value* result =
      ptx::IsFloat(to) ? ir.CreateUIToFP(compared, type) : ir.CreateSExt(compared, type);
  step.Write(0, to, result);
}

void EmitSelp(Step& step) {
  Value* choose = step.Read(3, Type::kPred);
  step.Write(step.ir().CreateSelect(choose, step.Read(1), step.Read(2)));
}

void EmitSlct(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  if (step.types.size() != 2) return step.Unsupported();
  Value* c = step.Read(3, step.types[1]);
  Value* choose = nullptr;
  if (step.types[1] == Type::kF32) {
    if (step.Has("ftz")) c = FlushSubnormal(step, c);
    choose = ir.CreateFCmpOGE(c, llvm::ConstantFP::get(c->getType(), 0.0));
  } else if (step.types[1] == Type::kS32) {
    choose = ir.CreateICmpSGE(c, ir.getInt32(0));
  } else {
    return step.Unsupported();
  }
  step.Write(ir.CreateSelect(choose, step.Read(1), step.Read(2)));
}

}  // namespace consort::cpu
