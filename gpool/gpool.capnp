# SPDX-License-Identifier: Apache-2.0
# gpool/gpool.capnp: what daemons of a pool say to its mapper. Described from the sender's side; numbers are never
# used again. A request that was sent twice, because an answer was lost, has the effect of one.
@0xc2a5d3b1f0e94786;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("consort::gpool::rpc");

struct Assembly {
  # An application of ours and the GPUs that it uses.
  id @0 :UInt64;           # ours; with our node's name nobody else has it
  tenant @1 :Text;
  application @2 :Text;    # the program's word
  gids @3 :List(UInt32);   # one for each vGPU in use
}

struct Vgpu {
  gid @0 :UInt32;
  why @1 :Text;            # for an operator
}

struct Feedback {
  # What was measured of one session that has ended. Times in nanoseconds.
  id @0 :Text;                 # the same when it is told again
  application @1 :Text;
  model @2 :Text;
  endedUnixNanos @3 :Int64;
  runtime @4 :Int64;           # by the wall
  gpuTime @5 :Int64;           # kernels
  transferTime @6 :Int64;      # copies between host and device
  bytes @7 :UInt64;            # copied
  sensitivity @8 :Float64;     # what the network would cost it; negative: not measured
  bandwidth @9 :Float64;       # of device memory while its kernels ran, bytes a second; 0: not measured
}

struct GpuLoad {
  gid @0 :UInt32;
  bound @1 :UInt32;            # vGPUs that applications use on it
}

interface Mapper {
  # Who calls is known from the link's certificate.

  place @0 (id :UInt64, tenant :Text, application :Text, vgpus :UInt32, try :Bool, only :List(UInt32),
            policy :Text)
      -> (vgpus :List(Vgpu), refusal :Text, later :Bool);
  # GPUs for an application; the first of them counts as used at once. try: nothing counts as used. later: the mapper
  # has just become that and does not know yet what all nodes use; ask again. only: the GPUs that the tenant may use,
  # ascending; none: all. policy: of the tree, that the tenant is placed by; none: the pool's.

  use @1 (assemblies :List(Assembly), all :Bool) -> ();
  # What these applications use now, in place of what was told before. all: and nothing else of ours is there.

  release @2 (id :UInt64) -> ();

  feedback @3 (records :List(Feedback)) -> ();

  loads @4 () -> (gpus :List(GpuLoad), policy :Text, byFeedback :Bool);
}
