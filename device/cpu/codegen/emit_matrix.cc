// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_matrix.cc: matrix instructions of warps; engine/matrix.cc does the work.
//
// Loads and stores of wmma fragments need no other lane: which lane has which element is ours to
// say. What the lanes of a group in step bring lies together: see LaneEmitter::MatrixPlace. Source:
// PTX ISA 9.0, 9.7.14 "Warp Level Matrix Multiply-Accumulate Instructions".
#include <bit>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/engine/matrix.h"
#include "device/cpu/engine/matrix_layout.h"
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

// Reads ".row.col" and the like; false if the factors' layouts are not both there.
bool ReadLayouts(const Step& step, MatrixOperation& operation) {
  std::vector<std::string_view> layouts;
  for (const std::string_view modifier : step.instruction.modifiers) {
    if (modifier == "row" || modifier == "col") layouts.push_back(modifier);
  }
  if (layouts.size() != 2) return false;
  operation.a_by_columns = layouts[0] == "col";
  operation.b_by_columns = layouts[1] == "col";
  return true;
}

Type RegisterType(MatrixType type) { return type == MatrixType::kF64 ? Type::kB64 : Type::kB32; }

// The registers that an operand names: those of a vector, or itself.
std::vector<Operand> Registers(const Operand& operand) {
  if (operand.kind == OperandKind::kVector) return operand.elements;
  return {operand};
}

// The lane's MatrixSlots: registers of an operand one after the other.
class Slots {
 public:
  explicit Slots(Step& step) : step_(step), buffer_(step.f.MatrixBuffer()) {}

  void Put(size_t offset, const Operand& operand, Type type) {
    const std::vector<Operand> registers = Registers(operand);
    for (size_t i = 0; i < registers.size(); ++i) {
      Value* value = step_.f.Read(registers[i], type);
      step_.ir().CreateStore(value, At(offset + i * ptx::TypeBits(type) / 8));
    }
  }
  void PutAddress(size_t offset, Value* pointer) {
    step_.ir().CreateStore(step_.ir().CreatePtrToInt(pointer, step_.ir().getInt64Ty()), At(offset));
  }
  void Run(const MatrixOperation& operation) {
    llvm::IRBuilder<>& ir = step_.ir();
    step_.f.CallWaiting("consort_rt_matrix", ir.getVoidTy(),
                        {step_.f.context(), ir.getInt32(operation.Pack()), buffer_});
  }
  void Move(const MatrixOperation& operation, Value* pointer, Value* pitch) {
    llvm::IRBuilder<>& ir = step_.ir();
    step_.f.CallRuntime(
        "consort_rt_fragment", ir.getVoidTy(),
        {step_.f.context(), ir.getInt32(operation.Pack()), pointer, pitch, buffer_});
  }
  void Get(const Operand& operand, Type type) {
    const std::vector<Operand> registers = Registers(operand);
    for (size_t i = 0; i < registers.size(); ++i) {
      Value* at = At(offsetof(MatrixSlots, d) + i * ptx::TypeBits(type) / 8);
      step_.f.Write(registers[i], type, step_.ir().CreateLoad(step_.f.IrType(type), at));
    }
  }

 private:
  Value* At(size_t offset) {
    return step_.ir().CreateConstGEP1_64(step_.ir().getInt8Ty(), buffer_, offset);
  }
  Step& step_;
  Value* buffer_;
};

// Whether the operands have as many registers as the fragments of `operation`.
bool CountsFit(const Step& step, const MatrixOperation& operation) {
  // Lanes that a product has.
  const uint32_t lanes =
      operation.kind == MatrixKind::kQuarters ? kWarpLanes / kQuartersOfWarp : kWarpLanes;
  auto factor = [&](MatrixType type, uint32_t elements) {
    if (operation.kind == MatrixKind::kWmma && type == MatrixType::kF16) return kMatrixRegisters;
    return elements / lanes / MatrixElementsOf(type);
  };
  auto sum = [&](MatrixType type) {
    return operation.m * operation.n / lanes / MatrixElementsOf(type);
  };
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
      {MatrixKind::kQuarters, MatrixType::kF16, "8x8x4"},
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

// The move of the fragment that wmma.load or wmma.store names, between memory and `registers`
// registers: of `a`, `b` or of sums. Nothing if it is not known.
std::optional<MatrixOperation> FragmentOf(const Step& step, std::string_view which, MatrixKind kind,
                                          size_t registers) {
  MatrixOperation shape;
  const std::vector<MatrixType> types = TypesOf(step);
  if (!ReadShape(step, shape) || types.size() != 1) return std::nullopt;
  const bool is_factor = which == "a" || which == "b";
  const bool by_rows = step.Has("row");
  const uint32_t rows = which == "b" ? shape.k : shape.m;
  const uint32_t columns = which == "a" ? shape.k : shape.n;
  MatrixOperation move;
  move.kind = kind;
  move.a = types[0];
  // Elements of less than a byte have no address of their own.
  if (MatrixTypeBits(move.a) < 8) return std::nullopt;
  // Factors are as they are in memory, sums by rows.
  move.transposes = !is_factor && !by_rows;
  move.m = is_factor && !by_rows ? columns : rows;
  move.n = is_factor && !by_rows ? rows : columns;
  move.k = static_cast<uint32_t>(registers);
  const uint32_t wanted = is_factor && move.a == MatrixType::kF16
                              ? kMatrixRegisters
                              : rows * columns / kWarpLanes / MatrixElementsOf(move.a);
  if (registers != wanted || wanted > kMatrixRegisters) return std::nullopt;
  return move;
}

// In checked code, the checks of the elements that the lane has.
void CheckFragment(Step& step, const MatrixOperation& move, Value* pointer, Value* pitch) {
  if (!step.f.shared().check_accesses) return;
  llvm::IRBuilder<>& ir = step.ir();
  const uint32_t bytes = MatrixTypeBits(move.a) / 8;
  const uint32_t elements = MatrixElementsOf(move.a);
  const bool loads = move.kind == MatrixKind::kLoadFragment;
  Value* lane = ir.CreateZExt(step.f.Field(offsetof(ThreadContext, lane), 32), ir.getInt64Ty());
  for (uint32_t i = 0; i < move.k * elements; ++i) {
    // As MoveFragment has it; sizes are powers of two.
    Value* position =
        ir.CreateAdd(ir.CreateMul(lane, ir.getInt64(elements)),
                     ir.getInt64(uint64_t{i / elements} * kWarpLanes * elements + i % elements));
    Value* line =
        ir.CreateAnd(ir.CreateUDiv(position, ir.getInt64(move.n)), ir.getInt64(move.m - 1));
    Value* in_line = ir.CreateAnd(position, ir.getInt64(move.n - 1));
    if (move.transposes) std::swap(line, in_line);
    Value* offset = ir.CreateAdd(ir.CreateMul(line, pitch), in_line);
    step.f.CheckAccess(
        ir.CreateGEP(ir.getInt8Ty(), pointer, ir.CreateMul(offset, ir.getInt64(bytes))),
        step.space(), loads ? AccessKind::kRead : AccessKind::kWrite, bytes);
  }
}

void MoveFragmentOf(Step& step, const MatrixOperation& move, Slots& slots, const Operand& address) {
  llvm::IRBuilder<>& ir = step.ir();
  Value* pointer = step.f.Pointer(address, step.space());
  Value* pitch = ir.getInt64(move.transposes ? move.m : move.n);
  if (step.operand_count() == 3) {
    pitch = ir.CreateZExt(step.f.Read(step.operand(2), Type::kU32), ir.getInt64Ty());
  }
  CheckFragment(step, move, pointer, pitch);
  slots.Move(move, pointer, pitch);
}

void EmitWmmaLoad(Step& step) {
  if (step.operand_count() < 2 || step.operand_count() > 3) return step.Unsupported();
  const std::optional<MatrixOperation> move = FragmentOf(
      step, step.OneOf("a b c"), MatrixKind::kLoadFragment, Registers(step.operand(0)).size());
  if (!move) return step.Unsupported();
  Slots slots(step);
  MoveFragmentOf(step, *move, slots, step.operand(1));
  slots.Get(step.operand(0), RegisterType(move->a));
}

void EmitWmmaStore(Step& step) {
  if (step.operand_count() < 2 || step.operand_count() > 3) return step.Unsupported();
  const std::optional<MatrixOperation> move =
      FragmentOf(step, "d", MatrixKind::kStoreFragment, Registers(step.operand(1)).size());
  if (!move) return step.Unsupported();
  Slots slots(step);
  slots.Put(offsetof(MatrixSlots, d), step.operand(1), RegisterType(move->a));
  MoveFragmentOf(step, *move, slots, step.operand(0));
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
  if (operation.m == 8 && operation.a == MatrixType::kF16) {
    operation.kind = MatrixKind::kQuarters;
    const bool narrows = operation.c == MatrixType::kF32 && operation.d == MatrixType::kF16;
    if (!ReadLayouts(step, operation) || narrows) return step.Unsupported();
  }
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
  if (!ReadLayouts(step, operation)) return step.Unsupported();
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
  slots.PutAddress(offsetof(MatrixSlots, a), pointer);
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
