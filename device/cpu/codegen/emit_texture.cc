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

void EmitFetch(Step& step, uint32_t flags) {
  const GeometryRow* const row = GeometryOf(step);
  const bool is_integer = step.types[1] == Type::kS32;
  if (row == nullptr || step.types[0] == Type::kF16 || step.types[1] == Type::kU32 ||
      (!is_integer && step.types[1] != Type::kF32)) {
    return step.Unsupported();
  }
  if (is_integer) flags |= kTextureIntegers;
  std::vector<Value*> arguments = {
      step.f.context(), step.ir().getInt32(flags | static_cast<uint32_t>(row->geometry))};
  if (!ReadPlace(step, step.operand(1), *row, &arguments)) return;
  CheckObject(step, arguments[2], /*is_surface=*/false);
  const ptx::Operand& to = step.operand(0);
  if (to.kind != ptx::OperandKind::kVector || to.elements.size() != 4) {
    return step.f.FailSyntax("a vector of four is wanted");
  }
  Value* const texel = step.f.CallRuntime(
      "consort_rt_texture", llvm::FixedVectorType::get(step.f.IntType(32), 4), arguments);
  for (uint32_t i = 0; i < 4; ++i) {
    step.f.Write(to.elements[i], step.type(),
                 step.f.Cast(step.ir().CreateExtractElement(texel, uint64_t{i}),
                             step.f.IrType(step.type())));
  }
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
    if (!step.Has("2d") && !step.Has("a2d")) return step.Unsupported();
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
