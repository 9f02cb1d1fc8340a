// SPDX-License-Identifier: Apache-2.0
// device/cpu/codegen/special_registers.cc: %tid and the like.
// Source: PTX ISA 9.0, 10 "Special Registers".
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "device/cpu/codegen/function_emitter.h"
#include "device/cpu/engine/thread_context.h"

namespace consort::cpu {
namespace {

using llvm::Value;

struct VectorRow {
  std::string_view name;
  size_t offset;
};

// Registers with components x, y, z.
constexpr VectorRow kVectors[] = {
    {"%tid", offsetof(ThreadContext, tid)},
    {"%ntid", offsetof(ThreadContext, ntid)},
    {"%ctaid", offsetof(ThreadContext, ctaid)},
    {"%nctaid", offsetof(ThreadContext, nctaid)},
};

struct FieldRow {
  std::string_view name;
  size_t offset;
  uint32_t bits;
};

constexpr FieldRow kFields[] = {
    {"%laneid", offsetof(ThreadContext, lane), 32},
    {"%warpid", offsetof(ThreadContext, warp), 32},
    {"%nwarpid", offsetof(ThreadContext, warp_count), 32},
    {"%smid", offsetof(ThreadContext, worker), 32},
    {"%gridid", offsetof(ThreadContext, grid_id), 64},
    {"%dynamic_smem_size", offsetof(ThreadContext, dynamic_shared_bytes), 32},
};

struct ConstantRow {
  std::string_view name;
  uint32_t value;
};

// Each block is a cluster of its own.
constexpr ConstantRow kConstants[] = {
    {"%clusterid", 0},
    {"%nclusterid", 1},
    {"%cluster_ctaid", 0},
    {"%cluster_nctaid", 1},
    {"%cluster_ctarank", 0},
    {"%cluster_nctarank", 1},
    {"%reserved_smem_offset_cap", kReservedSharedBytes},
    {"%nsmid", 1024},
};

// Into the part of shared memory that belongs to the system.
struct ReservedRow {
  std::string_view name;
  uint32_t offset;
};

constexpr ReservedRow kReserved[] = {
    {"%reserved_smem_offset_begin", 0},
    {"%reserved_smem_offset_0", 0},
    {"%reserved_smem_offset_1", kReservedSharedBytes / 2},
    {"%reserved_smem_offset_end", kReservedSharedBytes},
};

}  // namespace

Value* FunctionEmitter::SpecialRegister(const ptx::Operand& operand) {
  const std::string_view name = operand.text;
  llvm::IRBuilder<>& ir = builder_;
  for (const VectorRow& row : kVectors) {
    if (row.name != name) continue;
    if (operand.component == 'w') return ir.getInt32(0);
    if (operand.component == 0) break;
    const size_t at = static_cast<size_t>(operand.component - 'x');
    return Field(row.offset + at * sizeof(uint32_t), 32);
  }
  for (const FieldRow& row : kFields) {
    if (row.name == name) return Field(row.offset, row.bits);
  }
  for (const ConstantRow& row : kConstants) {
    if (row.name == name) return ir.getInt32(row.value);
  }
  if (name == "%total_smem_size" || name == "%aggr_smem_size") {
    return ir.CreateAdd(Field(offsetof(ThreadContext, static_shared_bytes), 32),
                        Field(offsetof(ThreadContext, dynamic_shared_bytes), 32));
  }
  for (const ReservedRow& row : kReserved) {
    if (row.name != name) continue;
    Value* own_end = ir.CreateAdd(Field(offsetof(ThreadContext, static_shared_bytes), 32),
                                  Field(offsetof(ThreadContext, dynamic_shared_bytes), 32));
    Value* begin = ir.CreateAnd(ir.CreateAdd(own_end, ir.getInt32(kReservedSharedAlign - 1)),
                                ir.getInt32(~(kReservedSharedAlign - 1)));
    return ir.CreateAdd(begin, ir.getInt32(row.offset));
  }
  if (name.starts_with("%lanemask_")) {
    Value* lane = Field(offsetof(ThreadContext, lane), 32);
    Value* equal = ir.CreateShl(ir.getInt32(1), lane);
    Value* below = ir.CreateSub(equal, ir.getInt32(1));
    const std::string_view which = name.substr(10);
    if (which == "eq") return equal;
    if (which == "lt") return below;
    if (which == "le") return ir.CreateOr(below, equal);
    if (which == "ge") return ir.CreateNot(below);
    if (which == "gt") return ir.CreateNot(ir.CreateOr(below, equal));
  }
  if (name == "%clock64" || name == "%clock" || name == "%clock_hi") {
    Value* clock = CallRuntime("consort_rt_clock", ir.getInt64Ty(), {});
    return name == "%clock_hi" ? ir.CreateLShr(clock, 32) : clock;
  }
  if (name.starts_with("%globaltimer")) {
    Value* nanos = CallRuntime("consort_rt_global_timer", ir.getInt64Ty(), {});
    return name == "%globaltimer_hi" ? ir.CreateLShr(nanos, 32) : nanos;
  }
  if (name == "%is_explicit_cluster") return ir.getFalse();
  // Where nvcc's code of cooperative groups looks for the words by which the blocks of a grid meet:
  // the high and the low half of their address (seen in PTX of nvcc 13). The ISA leaves the meaning
  // of these registers to the driver.
  if (name == "%envreg1" || name == "%envreg2") {
    Value* workspace = Field(offsetof(ThreadContext, grid_workspace), 64);
    if (name == "%envreg1") workspace = ir.CreateLShr(workspace, 32);
    return ir.CreateTrunc(workspace, ir.getInt32Ty());
  }
  if (name.starts_with("%envreg")) return ir.getInt32(0);
  Fail(absl::StatusCode::kUnimplemented,
       absl::StrCat("register `", absl::string_view(name.data(), name.size()),
                    "` is not supported"));
  return ir.getInt32(0);
}

}  // namespace consort::cpu
