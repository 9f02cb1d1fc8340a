# SPDX-License-Identifier: Apache-2.0
"""tests/compat/vm_guest.py: a virtual machine in which programs of this machine run as if they were installed there.

The guest sees the host's whole tree, read only, over virtio-9p, so that what is built or installed here (Python and
its packages) need not be put into an image. Its kernel has 9p, which Debian's cloud kernels lack. What is to be run is
left in a second shared folder, a job a file, and so are its outputs: the serial line carries no data.

    with Guest(vsock_socket, library_dir, folder) as guest:
        run = guest.run(["/usr/bin/python3", "train.py"], cwd="/root", environment={}, seconds=300)
"""

import itertools
import os
import pathlib
import shlex
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import results  # noqa: E402
import vm  # noqa: E402

KERNEL = "6.12-full"
BOOT_SECONDS = 180
BOOT_TRIES = 3
LATE_SECONDS = 60  # for a job's end to be seen, beyond its own time

# Each job NAME is claimed by a rename, so that it runs once; several run beside each other. The host's tree is
# read only but for folders in memory, and TMPDIR is one of those.
SCRIPT = """
mkdir -p /host /jobs
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose host /host || exit 1
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=none jobs /jobs || exit 1
for folder in proc sys dev; do mount --bind /$folder /host/$folder; done
mount -t tmpfs run /host/run
touch /jobs/up
while [ ! -e /jobs/down ]; do
  for job in /jobs/*.sh; do
    [ -e "$job" ] || continue
    name=${job%.sh}
    mv "$job" "$name.job"
    ( chroot /host /bin/sh -c "$(cat "$name.job")" > "$name.out" 2> "$name.err" < /dev/null
      echo $? > "$name.ended"
      mv "$name.ended" "$name.status" ) &
  done
  sleep 0.2
done
"""


class Guest:
    """One virtual machine for a with block. Thread safe: jobs of several threads run beside each other."""

    def __init__(self, vsock_socket, library_dir, folder, memory_mib=8192, cpus=4):
        """vsock_socket: where consortd listens for this machine. library_dir: Consort's guest library, in the host's
        tree. folder: for this object's files, which outlive it. Raises vm.Unavailable without a QEMU or kernel.
        """
        self._library_dir = pathlib.Path(library_dir).resolve()
        self._jobs = pathlib.Path(folder) / "jobs"
        self._jobs.mkdir()
        self._numbers = itertools.count()
        kernel = vm.fetch_kernel(KERNEL)
        initramfs = pathlib.Path(folder) / "initramfs"
        vm.build_initramfs(kernel, {}, SCRIPT, initramfs)
        self._make_vm = lambda: vm.Vm(kernel, initramfs, vsock_socket, memory_mib, cpus, timeout_s=24 * 3600,
                                      shares=(vm.Share("host", "/", read_only=True), vm.Share("jobs", self._jobs)))

    def __enter__(self):
        for tries_left in reversed(range(BOOT_TRIES)):
            self._vm = self._make_vm()
            self._vm.start()
            try:
                self._wait(self._jobs / "up", BOOT_SECONDS)
                break
            except vm.VmError as error:
                self._vm.kill()
                # Emulated with several processors, a kernel that patches its code at boot may run into its own
                # breakpoint ("Oops: int3"): before anything of ours is there, so it says nothing of it.
                if tries_left == 0 or "Kernel panic" not in str(error):
                    raise
                print(f"vm_guest: the guest's kernel did not boot; again\n{error}", file=sys.stderr, flush=True)
            except BaseException:
                self._vm.kill()
                raise
        return self

    def __exit__(self, *_):
        self._vm.kill()

    def _wait(self, path, seconds):
        deadline = time.monotonic() + seconds
        while not path.exists():
            if not self._vm.is_running() or time.monotonic() > deadline:
                raise vm.VmError(f"{path.name} did not come in {seconds} s\n{self._vm.tail()}")
            time.sleep(0.05)

    def run(self, command, cwd, environment, seconds):
        """Runs the command (host paths) in the guest; a results.Run. VmError: the guest is gone."""
        name = f"job{next(self._numbers)}"
        paths = [str(self._library_dir), environment.get("LD_LIBRARY_PATH", "")]
        variables = dict(environment, LD_LIBRARY_PATH=":".join(filter(None, paths)), TMPDIR="/run", HOME="/run",
                         PATH=os.environ["PATH"])
        words = ["timeout", "-s", "KILL", str(seconds), *command]
        text = f"cd {shlex.quote(str(cwd))} && exec env -i {shlex.join(f'{k}={v}' for k, v in variables.items())} {shlex.join(words)}\n"
        started = time.monotonic()
        draft = self._jobs / f"{name}.draft"
        draft.write_text(text)
        draft.rename(self._jobs / f"{name}.sh")
        self._wait(self._jobs / f"{name}.status", seconds + LATE_SECONDS)
        status = int((self._jobs / f"{name}.status").read_text())
        out, err = ((self._jobs / f"{name}.{kind}").read_text(errors="replace") for kind in ("out", "err"))
        late = status == 128 + 9 and time.monotonic() - started >= seconds
        return results.Run(128 - status if status > 128 else status, out, err, time.monotonic() - started, late)
