# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/initramfs.py: a guest's kernel and its root file system in memory.

Kernels are Debian's own, unpacked from their packages and never installed. An initramfs is two
cpio archives one after the other, which the kernel unpacks in turn: a base (busybox, modules,
/init) made once per kernel, and a part for each boot (the files under test with the libraries
that they need, and the script). Needs neither root nor, once a kernel is in the cache, a network.
Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (newc, concatenation).
"""

import dataclasses
import fcntl
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("CONSORT_CACHE") or REPOSITORY / ".cache")

# Metapackages follow the distribution's updates; the packages that they name disappear with time.
KERNEL_METAPACKAGES = {
    "6.1": "linux-image-cloud-amd64",
    "6.12": "linux-image-6.12-cloud-amd64",
    "6.12-full": "linux-image-6.12-amd64",  # has 9p, which the ones for clouds lack
}

# Loaded in this order, each after what it depends on. A name that is no module is built in.
GUEST_MODULES = ("virtio_pci", "vmw_vsock_virtio_transport", "9pnet_virtio", "9p")

BUSYBOX_NAMES = (
    "awk cat chmod chroot cp cut date dmesg echo env grep head hexdump id insmod ip kill ln ls lsmod "
    "mkdir mount mv poweroff printf ps rm sed seq sh sleep sort stat tail timeout touch tr uname unshare wc"
).split()

# The first process. Lines for the harness begin with "@consort" and a token made for this boot,
# so that nothing which a program of the guest prints can be taken for one.
INIT = """#!/bin/sh
export PATH=/bin:/usr/bin HOME=/root
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
ip link set lo up
token=$(sed -n 's/.*consort\\.token=\\([0-9a-f]*\\).*/\\1/p' /proc/cmdline)
for module in /modules/*.ko; do
  if [ -e "$module" ]; then insmod "$module"; fi
done
echo "@consort $token up"
sh /run.sh
status=$?
echo
echo "@consort $token exit $status"
poweroff -f
"""


class Unavailable(Exception):
    """Something outside this project is missing (a package, a network): a reason to skip."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel unpacked in the cache."""

    flavour: str  # a key of KERNEL_METAPACKAGES
    image: pathlib.Path  # boot/vmlinuz-*
    modules: pathlib.Path  # lib/modules/<release>
    release: str


def _output_of(command, what, folder=None):
    """What the command printed; Unavailable with what it said when it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
            check=False, cwd=folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from error
    if done.returncode != 0:
        said = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise Unavailable(f"{what}: `{' '.join(command)}` exited {done.returncode}: {said}")
    return done.stdout


class _Locked:
    """Holds a lock file for a with block: two tests at once must not both fill the cache."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "w", encoding="ascii")

    def __enter__(self):
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self._file.close()


def _kernel_at(flavour, folder):
    images = sorted(folder.glob("boot/vmlinuz-*"))
    modules = sorted(folder.glob("lib/modules/*"))
    if not images or not modules:
        raise Unavailable(f"{folder} holds no kernel: remove it, so that it is fetched again")
    return Kernel(flavour, images[-1], modules[-1], modules[-1].name)


def fetch_kernel(flavour, cache=None):
    """The kernel of one of KERNEL_METAPACKAGES, downloaded only if the cache lacks it.

    Unavailable: no apt, no network, or the suite has no such package.
    """
    metapackage = KERNEL_METAPACKAGES[flavour]
    folder = pathlib.Path(cache or CACHE) / "kernels" / flavour
    with _Locked(folder.with_name(flavour + ".lock")):
        if folder.is_dir():
            return _kernel_at(flavour, folder)
        what = f"cannot have a {flavour} kernel for the guest"
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if not shutil.which(tool):
                raise Unavailable(f"{what}: no {tool} on this machine")
        package = _dependency_of(metapackage)
        if not package:
            # A machine that has never run apt-get update knows no packages. Needs root; if it
            # fails, the message below is the one that matters.
            subprocess.run(["apt-get", "update", "-q"], stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=300, check=False)
            package = _dependency_of(metapackage)
        if not package:
            raise Unavailable(f"{what}: apt knows no {metapackage} (is the security suite listed?)")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=flavour + ".") as scratch:
            _output_of(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", package],
                       what, scratch)
            archives = list(pathlib.Path(scratch).glob("*.deb"))
            if len(archives) != 1:
                raise Unavailable(f"{what}: apt-get download {package} left {len(archives)} files")
            unpacked = pathlib.Path(scratch) / "unpacked"
            _output_of(["dpkg-deb", "-x", str(archives[0]), str(unpacked)], what)
            _kernel_at(flavour, unpacked)
            unpacked.rename(folder)
        return _kernel_at(flavour, folder)


def _dependency_of(metapackage):
    """The package that the metapackage stands for today, or None."""
    done = subprocess.run(["apt-cache", "depends", metapackage], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300, check=False)
    found = re.search(r"^\s*Depends: (\S+)", done.stdout, re.MULTILINE)
    return found.group(1) if found else None


class _Archive:
    """A cpio archive in the newc format, all entries owned by root."""

    def __init__(self):
        self._parts = []
        self._paths = set()
        self._inode = 0

    def _add(self, path, mode, content=b""):
        path = str(path).lstrip("/")
        if path in self._paths:
            return
        self._paths.add(path)
        self._inode += 1
        name = path.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        self._parts += [head, b"\0" * (-len(head) % 4), content, b"\0" * (-len(content) % 4)]

    def folder(self, path):
        """The folder and those above it."""
        for parent in reversed([pathlib.PurePosixPath(path), *pathlib.PurePosixPath(path).parents]):
            if str(parent) not in ("/", "."):
                self._add(parent, 0o040755)

    def file(self, path, content, mode=0o755):
        self.folder(pathlib.PurePosixPath(path).parent)
        self._add(path, 0o100000 | mode, content)

    def link(self, path, target):
        self.folder(pathlib.PurePosixPath(path).parent)
        self._add(path, 0o120777, str(target).encode())

    def content(self):
        """The archive, padded as the kernel wants it in front of another one."""
        self._inode = 0
        self._add("TRAILER!!!", 0)
        archive = b"".join(self._parts)
        return archive + b"\0" * (-len(archive) % 512)


def _modules_in_order(kernel):
    """(name, content) of GUEST_MODULES and of what they need, each after what it needs."""
    available = {}
    for path in kernel.modules.rglob("*.ko*"):
        name, _, compression = path.name.partition(".ko")
        if compression in ("", ".xz"):
            available[name.replace("-", "_")] = path
    ordered = {}

    def visit(name):
        if name in ordered or name not in available:
            return
        content = available[name].read_bytes()
        if available[name].suffix == ".xz":
            content = lzma.decompress(content)
        # The .modinfo section holds zero-terminated key=value texts.
        for needed in re.findall(rb"\0depends=([a-zA-Z0-9_,-]*)\0", content):
            for other in filter(None, needed.decode().split(",")):
                visit(other.replace("-", "_"))
        ordered[name] = content

    for name in GUEST_MODULES:
        visit(name)
    return list(ordered.items())


def _base(kernel):
    """The archive that all boots of this kernel share, from the cache or made now."""
    busybox = shutil.which("busybox")
    if not busybox:
        raise Unavailable("no busybox on this machine (Debian: busybox-static)")
    content = pathlib.Path(busybox).read_bytes()
    if libraries_of(busybox, ()):
        raise Unavailable(f"{busybox} is not static (Debian: install busybox-static)")
    key = hashlib.sha256()
    for part in (pathlib.Path(__file__).read_bytes(), content, str(kernel.image).encode(),
                 str(kernel.image.stat().st_mtime_ns).encode()):
        key.update(hashlib.sha256(part).digest())
    cached = kernel.image.parents[1] / f"base-{key.hexdigest()[:16]}.cpio"
    if cached.exists():
        return cached.read_bytes()
    archive = _Archive()
    for folder in ("dev", "proc", "sys", "tmp", "run", "root", "etc", "modules"):
        archive.folder(folder)
    archive.file("bin/busybox", content)
    for name in BUSYBOX_NAMES:
        archive.link(f"bin/{name}", "busybox")
    for index, (name, module) in enumerate(_modules_in_order(kernel)):
        archive.file(f"modules/{index:02}-{name}.ko", module, 0o644)
    archive.file("init", INIT.encode())
    for old in cached.parent.glob("base-*.cpio"):
        old.unlink(missing_ok=True)
    scratch = cached.with_suffix(f".{os.getpid()}")
    scratch.write_bytes(archive.content())
    scratch.rename(cached)
    return cached.read_bytes()


def libraries_of(path, provided):
    """Host paths of the shared libraries (and of the loader) that an ELF file needs.

    A library that is found nowhere but whose name is in `provided` is left out. Unavailable: it is
    found nowhere at all. A static program, or a file that is not ELF, needs none.
    """
    with open(path, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return []
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    done = subprocess.run(["ldd", str(path)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, env=environment)
    if done.returncode != 0:
        return []  # "not a dynamic executable" (static)
    found = []
    for line in done.stdout.splitlines():
        missing = re.match(r"\s*(\S+) => not found", line)
        if missing and missing.group(1) not in provided:
            raise Unavailable(f"{path} needs {missing.group(1)}, which this machine has not")
        present = re.match(r"\s*(?:(\S+) => )?(/\S+) \(0x", line)
        if present and (present.group(1) or present.group(2)) not in provided:
            found.append(present.group(2))
    return found


def kernel_words(token):
    """A guest's kernel command line. token: hexadecimal digits that INIT writes before what is for the harness."""
    # On a busy host an emulated timer can be so late that the kernel takes it for broken, and panics.
    return f"console=ttyS0 quiet panic=-1 no_timer_check consort.token={token}"


def build_initramfs(kernel, files, script, to):
    """Writes an initramfs to the path `to`.

    files: guest path -> host path; an ELF file brings the shared libraries that it needs, at the
    host's paths, but for those which are themselves in `files`. script: shell text, run as root;
    its exit status is the guest's.
    """
    archive = _Archive()
    provided = {pathlib.PurePosixPath(guest).name for guest in files}
    libraries = {}
    for guest, host in files.items():
        archive.file(guest, pathlib.Path(host).read_bytes())
        for library in libraries_of(host, provided):
            libraries[library] = None
    for library in libraries:
        archive.file(library, pathlib.Path(library).read_bytes())
    archive.file("run.sh", script.encode())
    with open(to, "wb") as output:
        output.write(_base(kernel))
        output.write(archive.content())
