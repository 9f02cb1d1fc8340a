// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/lane_vectoriser.h"

#include "device/cpu/codegen/lane_emitter.h"

namespace consort::cpu {

void LaneEmitter::Run() {
  EmitPrologue();
  llvm::BasicBlock* body = NewBlock();
  entry_end_ = ir_.CreateBr(body);
  ir_.SetInsertPoint(body);
  EmitRegion(nullptr);
  if (coroutine_.leave != nullptr) {
    ir_.CreateBr(coroutine_.leave);
  } else {
    ir_.CreateRetVoid();
  }
}

std::string VectoriseLanes(llvm::Function& scalar, const LaneGroup& group, ThreadsMode mode) {
  llvm::Function* out =
      llvm::Function::Create(scalar.getFunctionType(), scalar.getLinkage(), "", scalar.getParent());
  out->copyAttributesFrom(&scalar);
  LoadLaneFieldsAsIntegers(scalar);
  LaneEmitter emitter(scalar, *out, group, mode);
  std::string refusal = emitter.Refusal();
  if (!refusal.empty()) {
    out->eraseFromParent();
    return refusal;
  }
  emitter.Run();
  out->takeName(&scalar);
  scalar.eraseFromParent();
  return "";
}

}  // namespace consort::cpu
