// SPDX-License-Identifier: Apache-2.0
// host/session/variable_copies.h: module variables whose address the program knows.
//
// A driver puts module variables where it likes, in each worker elsewhere, but an address that a
// program has been told must stay good. Of some it is told where a copy is, in its window:
//
//   copies, fills ──▶ copy in the window ──▶ the variable, next in the same stream
//                           ▲                      ▲
//        kernels that were given the address   kernels that name it
//
// - Variables in constant memory: kernels cannot write it (PTX ISA, .const), so what copies and
//   fills write to both is the same in both.
// - The one variable of an image without code: no kernel names it.
//
// The window's memory is the caller's. Owned by the session loop.
#ifndef CONSORT_HOST_SESSION_VARIABLE_COPIES_H_
#define CONSORT_HOST_SESSION_VARIABLE_COPIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"

namespace consort::host {

class VariableCopies {
 public:
  struct Variable {
    uint64_t library = 0;  // the guest's id
    std::string name;
    uint64_t address = 0;  // where the driver has it
    Bytes bytes = 0;
  };
  // `address`: of the copy, which has what the variable has.
  void Add(uint64_t address, Variable variable) { copies_.emplace(address, std::move(variable)); }
  // Where the variable's copy is; 0: it has none.
  uint64_t Find(uint64_t library, const std::string& name) const;
  // Forgets the copies of the libraries that have gone; where they were.
  std::vector<uint64_t> Remove(const std::function<bool(uint64_t library)>& gone);

  // The request at hand writes to [address, address + bytes), or may do so.
  void NoteWrite(uint64_t address, Bytes bytes);
  bool written() const { return !written_.empty(); }
  // What is to be copied into variables behind the request.
  struct Piece {
    uint64_t from = 0;
    uint64_t to = 0;
    Bytes bytes = 0;
  };
  std::vector<Piece> TakeWritten() { return std::exchange(written_, {}); }

 private:
  std::map<uint64_t, Variable> copies_;  // by address of the copy
  std::vector<Piece> written_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VARIABLE_COPIES_H_
