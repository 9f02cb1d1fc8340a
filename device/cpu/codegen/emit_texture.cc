// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/emit_texture.cc: texture and surface instructions, as calls of the engine.
//
// Objects are handles in registers (the unified mode of PTX); module-scope .texref, .samplerref and
// .surfref variables, which CUDA 12 has dropped, are refused. Arrays have no mipmaps here, so a
// level of detail or gradients choose level 0. Source: PTX ISA 9.0, 9.7.11 "Texture
// Instructions", 9.7.12 "Surface Instructions".
#include <vector>

#include "device/cpu/codegen/emit.h"
#include "device/cpu/engine/runtime.h"
#include "device/cpu/texture.h"

namespace consort::cpu {
namespace {

using llvm::Value;
using ptx::Type;

struct GeometryRow {
  std::string_view name;
  Geometry geometry;
  size_t coordinates;  // elements of the vector that count, a layer included
};

constexpr GeometryRow kGeometries[] = {
    {"1d", Geometry::k1D, 1},
    {"2d", Geometry::k2D, 2},
    {"3d", Geometry::k3D, 3},
    {"a1d", Geometry::kLayered1D, 2},
    {"a2d", Geometry::kLayered2D, 3},
    {"cube", Geometry::kCube, 3},
    {"acube", Geometry::kLayeredCube, 4},
};

const GeometryRow* GeometryOf(const Step& step) {
  for (const GeometryRow& row : kGeometries) {
    if (step.Has(row.name)) return &row;
  }
  return nullptr;
}

// The handle and the coordinates, as 32 bits each, of an operand [object, {coordinates}]; the
// fourth is 0 where there are fewer. False after an error.
bool ReadPlace(Step& step, const ptx::Operand& operand, const GeometryRow& row,
               std::vector<Value*>* arguments) {
  if (operand.kind != ptx::OperandKind::kAddress || operand.elements.size() != 2) {
    step.f.FailSyntax("[object, {coordinates}] is wanted");
    return false;
  }
  if (operand.elements[0].kind != ptx::OperandKind::kSymbol) {
    step.Unsupported();  // a .texref or .surfref by name
    return false;
  }
  const ptx::Operand& place = operand.elements[1];
  const bool is_vector = place.kind == ptx::OperandKind::kVector;
  if ((is_vector ? place.elements.size() : 1) < row.coordinates) {
    step.f.FailSyntax("too few coordinates");
    return false;
  }
  arguments->push_back(step.f.Read(operand.elements[0], Type::kU64));
  for (size_t i = 0; i < 4; ++i) {
    const ptx::Operand& coordinate =
        is_vector && i < place.elements.size() ? place.elements[i] : place;
    const Type type = coordinate.kind == ptx::OperandKind::kFloat ? Type::kF32 : Type::kB32;
    arguments->push_back(i < row.coordinates
                             ? step.f.Cast(step.f.Read(coordinate, type), step.f.IntType(32))
                             : step.ir().getInt32(0));
  }
  return true;
}

// In checked code, the check of the object; `handle` as ReadPlace has it.
void CheckObject(Step& step, Value* handle, bool is_surface) {
  if (!step.f.shared().check_accesses) return;
  step.f.CallRuntime(
      "consort_rt_check_object", step.ir().getVoidTy(),
      {step.f.context(), handle, step.ir().getInt32(is_surface ? 1 : 0), step.f.Site()});
}

// Where the engine puts 16 bytes of results.
Value* ResultBuffer(Step& step) {
  return step.f.EntryAlloca(llvm::ArrayType::get(step.ir().getInt8Ty(), 16), 16);
}

Value* At(Step& step, Value* buffer, uint32_t offset) {
  return step.ir().CreateConstGEP1_64(step.ir().getInt8Ty(), buffer, offset);
}

// Four channels, or two pairs of halves.
void WriteTexel(Step& step, const ptx::Operand& to, Value* texel) {
  const bool is_halves = step.type() == Type::kF16x2;
  if (to.kind != ptx::OperandKind::kVector || to.elements.size() != (is_halves ? 2 : 4)) {
    return step.f.FailSyntax(is_halves ? "a vector of two is wanted"
                                       : "a vector of four is wanted");
  }
  llvm::IRBuilder<>& ir = step.ir();
  auto channel = [&](uint64_t i) { return ir.CreateExtractElement(texel, i); };
  if (!is_halves) {
    for (size_t i = 0; i < 4; ++i) {
      step.f.Write(to.elements[i], step.type(),
                   step.f.Cast(channel(i), step.f.IrType(step.type())));
    }
    return;
  }
  Value* pairs[2];
  for (size_t i = 0; i < 2; ++i) {
    Value* pair = ir.getInt32(0);
    for (size_t k = 0; k < 2; ++k) {
      Value* const half =
          ir.CreateFPTrunc(step.f.Cast(channel(2 * i + k), ir.getFloatTy()), ir.getHalfTy());
      Value* const bits = ir.CreateZExt(ir.CreateBitCast(half, ir.getInt16Ty()), ir.getInt32Ty());
      pair = ir.CreateOr(pair, ir.CreateShl(bits, 16 * k));
    }
    pairs[i] = pair;
  }
  for (size_t i = 0; i < 2; ++i) step.f.Write(to.elements[i], Type::kB32, pairs[i]);
}

void EmitFetch(Step& step, uint32_t flags) {
  const GeometryRow* const row = GeometryOf(step);
  const bool is_integer = step.types[1] == Type::kS32;
  const bool is_halves = step.types[0] == Type::kF16x2;
  if (row == nullptr || step.types[0] == Type::kF16 || step.Has("v2") != is_halves ||
      (!is_integer && step.types[1] != Type::kF32)) {
    return step.Unsupported();
  }
  if (is_integer) flags |= kTextureIntegers;
  std::vector<Value*> arguments = {
      step.f.context(), step.ir().getInt32(flags | static_cast<uint32_t>(row->geometry))};
  if (!ReadPlace(step, step.operand(1), *row, &arguments)) return;
  CheckObject(step, arguments[2], /*is_surface=*/false);
  Value* const texel = step.f.CallRuntime(
      "consort_rt_texture", llvm::FixedVectorType::get(step.f.IntType(32), 4), arguments);
  const ptx::Operand& to = step.operand(0);
  if (to.kind != ptx::OperandKind::kPair) return WriteTexel(step, to, texel);
  // The predicate says whether the texels are there, which they always are: no array is sparse.
  WriteTexel(step, to.elements[0], texel);
  step.f.Write(to.elements[1], Type::kPred, step.ir().getTrue());
}

uint32_t BoundsOf(const Step& step) {
  if (step.Has("clamp")) return static_cast<uint32_t>(SurfaceBounds::kClamp);
  if (step.Has("zero")) return static_cast<uint32_t>(SurfaceBounds::kZero);
  return static_cast<uint32_t>(SurfaceBounds::kTrap);
}

// The elements of a vector operand, or the operand itself.
std::vector<ptx::Operand> Elements(const ptx::Operand& operand) {
  if (operand.kind == ptx::OperandKind::kVector) return operand.elements;
  return {operand};
}

// Arguments of both surface functions; null after an error.
Value* SurfaceCall(Step& step, const ptx::Operand& place, size_t count,
                   std::vector<Value*>* arguments) {
  const GeometryRow* const row = GeometryOf(step);
  const uint32_t bytes = static_cast<uint32_t>(count) * ptx::TypeBytes(step.type());
  const uint32_t width = step.Has("v4") ? 4 : step.Has("v2") ? 2 : 1;
  if (row == nullptr || bytes > 16 || !step.Has("b") || count != width) {
    step.Unsupported();
    return nullptr;
  }
  Value* const buffer = ResultBuffer(step);
  *arguments = {
      step.f.context(), buffer,
      step.ir().getInt32(static_cast<uint32_t>(row->geometry) |
                         BoundsOf(step) << kSurfaceBoundsShift | bytes << kSurfaceBytesShift)};
  if (!ReadPlace(step, place, *row, arguments)) return nullptr;
  CheckObject(step, (*arguments)[3], /*is_surface=*/true);
  return buffer;
}

}  // namespace

void EmitTexture(Step& step) { EmitFetch(step, 0); }

void EmitTextureGather(Step& step) {
  constexpr std::string_view kChannels[] = {"r", "g", "b", "a"};
  for (uint32_t channel = 0; channel < 4; ++channel) {
    if (!step.Has(kChannels[channel])) continue;
    return EmitFetch(step, kTextureGather | channel << kTextureChannelShift);
  }
  step.Unsupported();
}

void EmitSurfaceLoad(Step& step) {
  const std::vector<ptx::Operand> to = Elements(step.operand(0));
  std::vector<Value*> arguments;
  Value* const buffer = SurfaceCall(step, step.operand(1), to.size(), &arguments);
  if (buffer == nullptr) return;
  step.f.CallRuntime("consort_rt_surface_load", step.ir().getVoidTy(), arguments);
  const uint32_t bytes = ptx::TypeBytes(step.type());
  std::vector<Value*> values;
  for (uint32_t i = 0; i < to.size(); ++i) {
    values.push_back(step.ir().CreateAlignedLoad(step.f.IntType(8 * bytes),
                                                 At(step, buffer, i * bytes), llvm::Align(bytes)));
  }
  for (size_t i = 0; i < to.size(); ++i) step.f.Write(to[i], step.type(), values[i]);
}

void EmitSurfaceStore(Step& step) {
  const std::vector<ptx::Operand> from = Elements(step.operand(1));
  std::vector<Value*> arguments;
  Value* const buffer = SurfaceCall(step, step.operand(0), from.size(), &arguments);
  if (buffer == nullptr) return;
  const uint32_t bytes = ptx::TypeBytes(step.type());
  for (uint32_t i = 0; i < from.size(); ++i) {
    step.ir().CreateAlignedStore(
        step.f.Cast(step.f.Read(from[i], step.type()), step.f.IntType(8 * bytes)),
        At(step, buffer, i * bytes), llvm::Align(bytes));
  }
  step.f.CallRuntime("consort_rt_surface_store", step.ir().getVoidTy(), arguments);
}

void EmitSurfaceReduce(Step& step) {
  struct Operation {
    std::string_view name;
    WarpReduce of_signed;
    WarpReduce of_unsigned;
  };
  constexpr Operation kOperations[] = {
      {"add", WarpReduce::kAdd, WarpReduce::kAdd},
      {"min", WarpReduce::kMinSigned, WarpReduce::kMinUnsigned},
      {"max", WarpReduce::kMaxSigned, WarpReduce::kMaxUnsigned},
      {"and", WarpReduce::kAnd, WarpReduce::kAnd},
      {"or", WarpReduce::kOr, WarpReduce::kOr},
  };
  for (const Operation& operation : kOperations) {
    if (!step.Has(operation.name)) continue;
    const WarpReduce chosen =
        ptx::IsSigned(step.type()) ? operation.of_signed : operation.of_unsigned;
    std::vector<Value*> arguments;
    Value* const buffer = SurfaceCall(step, step.operand(0), 1, &arguments);
    if (buffer == nullptr) return;
    const uint32_t bytes = ptx::TypeBytes(step.type());
    step.ir().CreateAlignedStore(
        step.f.Cast(step.f.Read(step.operand(1), step.type()), step.f.IntType(8 * bytes)), buffer,
        llvm::Align(bytes));
    arguments.push_back(step.ir().getInt32(static_cast<uint32_t>(chosen)));
    step.f.CallRuntime("consort_rt_surface_reduce", step.ir().getVoidTy(), arguments);
    return;
  }
  step.Unsupported();
}

void EmitTextureQuery(Step& step) {
  constexpr std::string_view kQueries[] = {"width", "height", "depth"};
  for (uint32_t query = 0; query < 3; ++query) {
    if (!step.Has(kQueries[query])) continue;
    const ptx::Operand& object = step.operand(1);
    if (object.kind != ptx::OperandKind::kAddress || object.elements.size() != 1 ||
        object.elements[0].kind != ptx::OperandKind::kSymbol) {
      return step.Unsupported();
    }
    step.Write(step.f.CallRuntime("consort_rt_texture_size", step.f.IntType(32),
                                  {step.f.context(), step.f.Read(object.elements[0], Type::kU64),
                                   step.ir().getInt32(query)}));
    return;
  }
  step.Unsupported();
}

}  // namespace consort::cpu
