# SPDX-License-Identifier: Apache-2.0
# host/checkpoint/checkpoint.capnp: what a checkpoint's manifest says (manifest.h). Numbers are never used again.
@0xb7d1f08c3a9e5264;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("consort::host::capnp_checkpoint");

struct Manifest {
  id @0 :Data;                   # 16 random bytes: no other checkpoint has them
  createdUnixSeconds @1 :UInt64;
  who @2 :Text;                  # asked for it, as consortd's log names people

  # What wrote it, and what can read it.
  version @3 :Text;              # of Consort
  description @4 :UInt64;        # of the API: wire::kDescriptionHash
  stateVersion @5 :UInt32;       # kSessionStateVersion

  # Whose it is.
  tenant @6 :Text;
  vm @7 :Text;
  application @8 :Text;          # the program's word
  pid @9 :UInt32;                # likewise
  device @10 :UInt32;            # that it was on
  deviceModel @11 :Text;
  windowBase @12 :UInt64;        # addresses that it has
  windowBytes @13 :UInt64;

  # What it has, for people.
  streams @14 :UInt64;
  events @15 :UInt64;
  libraries @16 :UInt64;
  kernels @17 :UInt64;
  allocations @18 :UInt64;
  pinnedBytes @19 :UInt64;       # of host memory, which stays with the program

  chunks @20 :List(Chunk);       # as they follow each other in the data file

  # Of one that has left its connection; empty: its connection is held where it was.
  resumeToken @21 :Data;         # by which its program takes it up
  vgpu @22 :UInt32;              # what its program calls the device
}

struct Chunk {
  kind @0 :UInt8;                # CheckpointChunk::Kind
  at @1 :UInt64;                 # as its kind says
  bytes @2 :UInt64;
  packedBytes @3 :UInt64;        # in the data file
  checksum @4 :UInt32;           # that its frame ends with
}
