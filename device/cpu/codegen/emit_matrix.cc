// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_matrix.cc: matrix instructions of warps; engine/matrix.cc does the work.
//
// Loads and stores of wmma fragments need no other lane: which lane has which element is ours to
// say. Source: PTX ISA 9.0, 9.7.14 "Warp Level Matrix Multiply-Accumulate Instructions".
#include <bit>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/engine/matrix.h"
#include "device/cpu/engine/thread_context.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

struct TypeRow {
  std::string_view name;
  MatrixType type;
};

constexpr TypeRow kTypeRows[] = {
    {"f16", MatrixType::kF16}, {"bf16", MatrixType::kBf16}, {"tf32", MatrixType::kTf32},
    {"f32", MatrixType::kF32}, {"f64", MatrixType::kF64},   {"s8", MatrixType::kS8},
    {"u8", MatrixType::kU8},   {"s4", MatrixType::kS4},     {"u4", MatrixType::kU4},
    {"b1", MatrixType::kB1},   {"s32", MatrixType::kS32},
};

// The types in the instruction's name, in order.
std::vector<MatrixType> TypesOf(const Step& step) {
  std::vector<MatrixType> types;
  for (const std::string_view modifier : step.instruction.modifiers) {
    for (const TypeRow& row : kTypeRows) {
      if (row.name == modifier) types.push_back(row.type);
    }
  }
  return types;
}

// Reads "m16n8k16" into the operation; false if there is no such modifier.
bool ReadShape(const Step& step, MatrixOperation& operation) {
  for (const std::string_view modifier : step.instruction.modifiers) {
    if (modifier.size() < 6 || modifier[0] != 'm') continue;
    uint32_t numbers[3] = {};
    int index = -1;
    for (const char c : modifier) {
      if (c == "mnk"[index + 1 < 3 ? index + 1 : 2] && index < 2) {
        ++index;
      } else if (c >= '0' && c <= '9' && index >= 0) {
        numbers[index] = numbers[index] * 10 + static_cast<uint32_t>(c - '0');
      } else {
        return false;
      }
    }
    if (index != 2) return false;
    for (const uint32_t number : numbers) {
      if (!std::has_single_bit(number)) return false;
    }
    operation.m = numbers[0];
    operation.n = numbers[1];
    operation.k = numbers[2];
    return true;
  }
  return false;
}

Type RegisterType(MatrixType type) { return type == MatrixType::kF64 ? Type::kB64 : Type::kB32; }

uint32_t ElementsOf(MatrixType type) {
  return type == MatrixType::kF64 ? 1 : 32 / MatrixTypeBits(type);
}

// The registers that an operand names: those of a vector, or itself.
std::vector<Operand> Registers(const Operand& operand) {
  if (operand.kind == OperandKind::kVector) return operand.elements;
  return {operand};
}

class Slots {
 public:
  explicit Slots(Step& step) : step_(step), buffer_(step.f.MatrixBuffer()) {}

  void Put(size_t offset, const Operand& operand, Type type) {
    const std::vector<Operand> registers = Registers(operand);
    for (size_t i = 0; i < registers.size(); ++i) Put(offset, i, step_.f.Read(registers[i], type));
  }
  void Put(size_t offset, size_t index, Value* value) {
    llvm::IRBuilder<>& ir = step_.ir();
    ir.CreateStore(ir.CreateZExt(value, ir.getInt64Ty()), At(offset, index));
  }
  void Run(const MatrixOperation& operation) {
    llvm::IRBuilder<>& ir = step_.ir();
    step_.f.CallWaiting("consort_rt_matrix", ir.getVoidTy(),
                        {step_.f.context(), ir.getInt32(operation.Pack()), buffer_});
  }
  void Get(const Operand& operand, Type type) {
    llvm::IRBuilder<>& ir = step_.ir();
    const std::vector<Operand> registers = Registers(operand);
    for (size_t i = 0; i < registers.size(); ++i) {
      Value* value = ir.CreateLoad(ir.getInt64Ty(), At(offsetof(MatrixSlots, d), i));
      step_.f.Write(registers[i], type, ir.CreateTrunc(value, step_.f.IrType(type)));
    }
  }

 private:
  Value* At(size_t offset, size_t index) {
    return step_.ir().CreateConstGEP1_64(step_.ir().getInt8Ty(), buffer_,
                                         offset + index * sizeof(uint64_t));
  }
  Step& step_;
  Value* buffer_;
};

// Whether the operands have as many registers as the fragments of `operation`.
bool CountsFit(const Step& step, const MatrixOperation& operation) {
  constexpr uint32_t kLanes = kWarpLanes;
  auto factor = [&](MatrixType type, uint32_t elements) {
    if (operation.kind == MatrixKind::kWmma && type == MatrixType::kF16) return kMatrixRegisters;
    return elements / kLanes / ElementsOf(type);
  };
  auto sum = [&](MatrixType type) { return operation.m * operation.n / kLanes / ElementsOf(type); };
  const uint32_t wanted[] = {sum(operation.d), factor(operation.a, operation.m * operation.k),
                             factor(operation.b, operation.k * operation.n), sum(operation.c)};
  for (size_t i = 0; i < 4; ++i) {
    if (wanted[i] == 0 || wanted[i] > kMatrixRegisters) return false;
    if (Registers(step.operand(i)).size() != wanted[i]) return false;
  }
  return true;
}

// The shapes that there are, by the type of the factors.
// Source: PTX ISA 9.0, 9.7.14.1 "Matrix Shape".
bool ShapeKnown(const MatrixOperation& operation) {
  struct Shapes {
    MatrixKind kind;
    MatrixType type;
    std::string_view shapes;
  };
  static constexpr Shapes kShapes[] = {
      {MatrixKind::kMma, MatrixType::kF16, "16x8x8 16x8x16"},
      {MatrixKind::kMma, MatrixType::kBf16, "16x8x8 16x8x16"},
      {MatrixKind::kMma, MatrixType::kTf32, "16x8x4 16x8x8"},
      {MatrixKind::kMma, MatrixType::kF64, "8x8x4 16x8x4 16x8x8 16x8x16"},
      {MatrixKind::kMma, MatrixType::kS8, "8x8x16 16x8x16 16x8x32"},
      {MatrixKind::kMma, MatrixType::kS4, "8x8x32 16x8x32 16x8x64"},
      {MatrixKind::kMma, MatrixType::kB1, "8x8x128 16x8x128 16x8x256"},
      {MatrixKind::kWmma, MatrixType::kF16, "16x16x16 32x8x16 8x32x16"},
      {MatrixKind::kWmma, MatrixType::kBf16, "16x16x16 32x8x16 8x32x16"},
      {MatrixKind::kWmma, MatrixType::kTf32, "16x16x8"},
      {MatrixKind::kWmma, MatrixType::kF64, "8x8x4"},
      {MatrixKind::kWmma, MatrixType::kS8, "16x16x16 32x8x16 8x32x16"},
  };
  const MatrixType type = operation.a == MatrixType::kU8   ? MatrixType::kS8
                          : operation.a == MatrixType::kU4 ? MatrixType::kS4
                                                           : operation.a;
  const std::string shape = std::to_string(operation.m) + "x" + std::to_string(operation.n) + "x" +
                            std::to_string(operation.k);
  for (const Shapes& row : kShapes) {
    if (row.kind != operation.kind || row.type != type) continue;
    for (size_t at = row.shapes.find(shape); at != std::string_view::npos;
         at = row.shapes.find(shape, at + 1)) {
      const size_t end = at + shape.size();
      if ((at == 0 || row.shapes[at - 1] == ' ') &&
          (end == row.shapes.size() || row.shapes[end] == ' ')) {
        return true;
      }
    }
  }
  return false;
}

// d = a * b + c; the types of the operation are set.
void EmitMultiply(Step& step, const MatrixOperation& operation) {
  if (!ShapeKnown(operation)) return step.Unsupported();
  if (!CountsFit(step, operation)) {
    return step.f.FailSyntax("the vectors do not fit the instruction");
  }
  Slots slots(step);
  slots.Put(offsetof(MatrixSlots, a), step.operand(1), RegisterType(operation.a));
  slots.Put(offsetof(MatrixSlots, b), step.operand(2), RegisterType(operation.b));
  slots.Put(offsetof(MatrixSlots, c), step.operand(3), RegisterType(operation.c));
  slots.Run(operation);
  slots.Get(step.operand(0), RegisterType(operation.d));
}

// Reads what a fragment of wmma is of from the instruction's name. False if it is not known.
struct Fragment {
  uint32_t rows;
  uint32_t columns;
  MatrixType type;
};

std::optional<Fragment> FragmentOf(const Step& step, std::string_view which) {
  MatrixOperation operation;
  operation.kind = MatrixKind::kWmma;
  const std::vector<MatrixType> types = TypesOf(step);
  if (!ReadShape(step, operation) || types.size() != 1) return std::nullopt;
  Fragment fragment;
  fragment.type = types[0];
  fragment.rows = which == "b" ? operation.k : operation.m;
  fragment.columns = which == "a" ? operation.k : operation.n;
  // Elements of less than a byte have no address of their own.
  if (MatrixTypeBits(fragment.type) < 8) return std::nullopt;
  return fragment;
}

// Calls `each` with the number of a register, of the element in it, and the element's address.
template <typename Each>
void ForEachElement(Step& step, const Fragment& fragment, const Operand& address,
                    const Operand* stride, size_t registers, AccessKind kind, Each each) {
  llvm::IRBuilder<>& ir = step.ir();
  const uint32_t bytes = MatrixTypeBits(fragment.type) / 8;
  const uint32_t elements = ElementsOf(fragment.type);
  const auto count = static_cast<uint32_t>(registers) * elements;
  const bool by_rows = step.Has("row");
  const uint32_t line = by_rows ? fragment.columns : fragment.rows;
  Value* pointer = step.f.Pointer(address, step.space());
  Value* pitch = stride != nullptr
                     ? ir.CreateZExt(step.f.Read(*stride, Type::kU32), ir.getInt64Ty())
                     : static_cast<Value*>(ir.getInt64(line));
  Value* lane = ir.CreateZExt(step.f.Field(offsetof(ThreadContext, lane), 32), ir.getInt64Ty());
  Value* first = ir.CreateMul(lane, ir.getInt64(count));
  for (uint32_t i = 0; i < count; ++i) {
    // As WmmaElement has it; sizes are powers of two.
    Value* number = ir.CreateAnd(ir.CreateAdd(first, ir.getInt64(i)),
                                 ir.getInt64(uint64_t{fragment.rows} * fragment.columns - 1));
    Value* row = ir.CreateUDiv(number, ir.getInt64(fragment.columns));
    Value* column = ir.CreateURem(number, ir.getInt64(fragment.columns));
    Value* offset = by_rows ? ir.CreateAdd(ir.CreateMul(row, pitch), column)
                            : ir.CreateAdd(ir.CreateMul(column, pitch), row);
    Value* at = ir.CreateGEP(ir.getInt8Ty(), pointer, ir.CreateMul(offset, ir.getInt64(bytes)));
    step.f.CheckAccess(at, step.space(), kind, bytes);
    each(i / elements, i % elements, at);
  }
}

void EmitWmmaLoad(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::string_view which = step.OneOf("a b c");
  const std::optional<Fragment> fragment = FragmentOf(step, which);
  if (!fragment || step.operand_count() < 2 || step.operand_count() > 3) return step.Unsupported();
  const std::vector<Operand> registers = Registers(step.operand(0));
  const uint32_t bits = MatrixTypeBits(fragment->type);
  const Type type = RegisterType(fragment->type);
  std::vector<Value*> values(registers.size(), nullptr);
  ForEachElement(
      step, *fragment, step.operand(1), step.operand_count() == 3 ? &step.operand(2) : nullptr,
      registers.size(), AccessKind::kRead, [&](uint32_t index, uint32_t part, Value* at) {
        Value* value = ir.CreateAlignedLoad(step.f.IntType(bits), at, llvm::Align(bits / 8));
        value = ir.CreateShl(ir.CreateZExt(value, step.f.IrType(type)), uint64_t{part} * bits);
        values[index] = part == 0 ? value : ir.CreateOr(values[index], value);
      });
  for (size_t i = 0; i < registers.size(); ++i) step.f.Write(registers[i], type, values[i]);
}

void EmitWmmaStore(Step& step) {
  llvm::IRBuilder<>& ir = step.ir();
  const std::optional<Fragment> fragment = FragmentOf(step, "d");
  if (!fragment || step.operand_count() < 2 || step.operand_count() > 3) return step.Unsupported();
  const std::vector<Operand> registers = Registers(step.operand(1));
  const uint32_t bits = MatrixTypeBits(fragment->type);
  std::vector<Value*> values;
  for (const Operand& operand : registers) {
    values.push_back(step.f.Read(operand, RegisterType(fragment->type)));
  }
  ForEachElement(step, *fragment, step.operand(0),
                 step.operand_count() == 3 ? &step.operand(2) : nullptr, registers.size(),
                 AccessKind::kWrite, [&](uint32_t index, uint32_t part, Value* at) {
                   Value* value = ir.CreateLShr(values[index], uint64_t{part} * bits);
                   ir.CreateAlignedStore(ir.CreateTrunc(value, step.f.IntType(bits)), at,
                                         llvm::Align(bits / 8));
                 });
}

}  // namespace

void EmitMma(Step& step) {
  MatrixOperation operation;
  const std::vector<MatrixType> types = TypesOf(step);
  if (!step.Has("sync") || types.size() != 4 || !ReadShape(step, operation)) {
    return step.Unsupported();
  }
  operation.d = types[0];
  operation.a = types[1];
  operation.b = types[2];
  operation.c = types[3];
  operation.saturates = step.Has("satfinite") || step.Has("and");
  EmitMultiply(step, operation);
}

void EmitWmma(Step& step) {
  if (step.Has("load")) return EmitWmmaLoad(step);
  if (step.Has("store")) return EmitWmmaStore(step);
  MatrixOperation operation;
  operation.kind = MatrixKind::kWmma;
  const std::vector<MatrixType> types = TypesOf(step);
  if (!step.Has("mma") || step.operand_count() != 4 || !ReadShape(step, operation)) {
    return step.Unsupported();
  }
  if (types.size() == 2) {  // of halves, which go without saying
    operation.d = types[0];
    operation.c = types[1];
  } else if (types.size() == 4) {
    operation.d = types[0];
    operation.a = types[1];
    operation.b = types[2];
    operation.c = types[3];
  } else {
    return step.Unsupported();
  }
  operation.saturates = step.Has("satfinite");
  EmitMultiply(step, operation);
}

// ldmatrix and stmatrix.
void EmitMatrixMove(Step& step) {
  const bool is_load = step.instruction.opcode == "ldmatrix";
  MatrixOperation operation;
  operation.kind = is_load ? MatrixKind::kLoad : MatrixKind::kStore;
  operation.m = step.Has("x4") ? 4 : step.Has("x2") ? 2 : 1;
  operation.transposes = step.Has("trans");
  if (step.OneOf("x1 x2 x4").empty() || !step.Has("m8n8")) return step.Unsupported();
  const Operand& registers = step.operand(is_load ? 0 : 1);
  if (Registers(registers).size() != operation.m) {
    return step.f.FailSyntax("the vector does not fit the instruction");
  }
  Slots slots(step);
  Value* pointer = step.f.Pointer(step.operand(is_load ? 1 : 0), step.space());
  // Each row of eight halves has its address from one of the first lanes.
  Value* lane = step.f.Field(offsetof(ThreadContext, lane), 32);
  step.f.CheckAccess(pointer, step.space(), is_load ? AccessKind::kRead : AccessKind::kWrite, 16,
                     step.ir().CreateICmpULT(lane, step.ir().getInt32(8 * operation.m)));
  slots.Put(offsetof(MatrixSlots, a), size_t{0},
            step.ir().CreatePtrToInt(pointer, step.ir().getInt64Ty()));
  if (!is_load) slots.Put(offsetof(MatrixSlots, b), registers, Type::kB32);
  slots.Run(operation);
  if (is_load) slots.Get(registers, Type::kB32);
}

void EmitMatrixTranspose(Step& step) {
  MatrixOperation operation;
  operation.kind = MatrixKind::kTranspose;
  if (!step.Has("trans") || !step.Has("m8n8")) return step.Unsupported();
  Slots slots(step);
  slots.Put(offsetof(MatrixSlots, a), step.operand(1), Type::kB32);
  slots.Run(operation);
  slots.Get(step.operand(0), Type::kB32);
}

}  // namespace consort::cpu
