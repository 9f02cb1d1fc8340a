#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/e2e/install_test.py: from `apt install` to numbers on a fresh host, and back to nothing by `apt purge`.

The host is a machine.Machine: apt installs the packages, systemd starts the daemon as its unit says, libvirt runs the domain
(qemu:///system, emulated). The guest's file system is another overlay, into which packaging/guest-image puts consort-guest.
"""

import json
import pathlib
import re
import secrets
import shutil
import subprocess
import tempfile
import time
import unittest

import debian
import domain
import machine
import stack
import vm
from initramfs import REPOSITORY, libraries_of

GUEST_SECONDS = 400
WAIT_SECONDS = 180
DOMAIN_NAME = "web-1"
OURS = "/usr/lib/x86_64-linux-gnu/consort/libcuda.so.1"
PROGRAMS = ("vector_add", "reduction", "device_query")

# A guest's file system: this machine's, through an overlay, with the package put in as the documentation says. What the
# package brought, and what the loader was told of it, goes to $2. $1: for the overlay. $3: the script. $4: the package.
GUEST_IMAGE = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
"$3" "$1/root" "$4"
chroot "$1/root" dpkg -L consort-guest | while read -r path; do
  [ -d "$1/root$path" ] || echo "$path"
done >"$2/list"
printf '%s\n' /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d >>"$2/list"
tar -C "$1/root" -cf - --verbatim-files-from -T <(sed 's|^/||' "$2/list") | tar -C "$2" -xf -
"""

# In the guest: what a container runtime makes of the package's CDI file (mounts: HOST CONTAINER a line), for a container of
# programs and their libraries in which vsock is refused; the first time without the proxy's socket.
CONTAINER = r"""
set -e
for folder in proc dev tmp usr/bin; do mkdir -p /container/$folder; done
cp -r /lib /lib64 /container
for program in {programs}; do cp /usr/bin/$program /container/usr/bin; done
mkdir -p /run/consort-guest
/usr/lib/consort/bin/consort-guest-proxy &
until [ -S /run/consort-guest/consortd.sock ]; do sleep 0.1; done
unshare -m -p -f sh -e -c '
mount -t proc proc /container/proc
mount_all() {{
  while read -r from to; do
    if [ -d $from ]; then mkdir -p /container$to; else mkdir -p /container${{to%/*}}; touch /container$to; fi
    mount --bind $from /container$to
  done
}}
mount --bind /dev /container/dev
mount -t tmpfs tmpfs /container/tmp
mount_all <<END
{libraries}
END
if refuse_vsock /container /usr/bin/vector_add; then exit 1; fi
mount_all <<END
{sockets}
END
for program in {programs}; do refuse_vsock /container /usr/bin/$program; done
'
"""
IN_CONTAINER = ("vector_add", "streams", "callbacks")

# Written anew by dpkg, apt, systemd, libvirt and podman themselves whatever is installed and removed; that they do not speak of
# consort any more is looked at below.
KEPT_BY_OTHERS = re.compile(
    r"/var/lib/(dpkg|apt|systemd|libvirt|PackageKit|containers|cni)\b|/var/log/(dpkg|alternatives)\.log|/var/log/(apt|journal|libvirt)\b|"
    r"/var/cache/(apt|man|ldconfig|debconf|libvirt)\b|/var/tmp/systemd-private-|/etc/ld\.so\.cache|/etc/(libvirt|cni)/|"
    r"/root/\.cache|/usr/share/mime|/etc/(passwd|group|g?shadow)-")

# Debian's custom: a system user stays, so that its number is not given to another while files of it may be left somewhere.
USERS = re.compile(r"consort:|kvm:|libvirt-qemu:")


class FromInstallToNumbers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.local = pathlib.Path(folder.name)
        try:
            for path in ("/usr/sbin/libvirtd", "/usr/bin/virsh", "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so"):
                if not pathlib.Path(path).exists():
                    raise vm.Unavailable(f"there is no {path} on this machine")
            self.kernel = vm.fetch_kernel("6.12")
            vm.qemu()
            for name in ("packages", "guest", "overlay", "machine"):
                (self.local / name).mkdir()
            self.packages = debian.build_packages(self.local / "packages")
            self.host = self.enterContext(machine.Machine(self.local / "machine"))
        except vm.Unavailable as reason:
            self.skipTest(str(reason))
        installed = self.host.run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", "consort-*", status=None).stdout
        if " installed" in installed:
            self.skipTest(f"not a fresh machine: {installed}")
        self.token = secrets.token_hex(8)

    def ctl(self, *arguments, status=0):
        return self.host.run("consortctl", *arguments, status=status).stdout

    def virsh(self, *arguments):
        return self.host.run("virsh", "-c", "qemu:///system", *arguments).stdout

    def wait_for(self, what, seconds=WAIT_SECONDS):
        """What what() returns, once that is true."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                self.fail(f"waited {seconds} s\n{self.host.journal()}")
            time.sleep(0.1)
        return found

    def start_libvirt(self):
        """libvirtd as Debian's libvirt-daemon-system runs it, which needs a network to be installed: its user, its groups."""
        self.host.run("sh", "-c", "for group in kvm libvirt-qemu; do getent group $group || groupadd --system $group; done; "
                      "getent passwd libvirt-qemu || useradd --system --gid kvm --home-dir /var/lib/libvirt --shell /usr/sbin/nologin libvirt-qemu")
        self.host.run("sh", "-c", "mkdir -p /etc/libvirt && cat >/etc/libvirt/qemu.conf",
                      text='security_driver = "none"\n')
        for name in ("virtlogd", "libvirtd"):
            self.host.run("systemd-run", f"--unit={name}", "--collect", f"/usr/sbin/{name}")
        self.wait_for(lambda: self.host.run("virsh", "-c", "qemu:///system", "list", status=None).returncode == 0)

    def make_guest(self):
        """The guest's kernel and its root in memory: the programs, and what dpkg put into the guest's file system."""
        root = self.local / "guest"
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", GUEST_IMAGE, "guest", self.local / "overlay", root,
             REPOSITORY / "packaging" / "guest-image" / "install_into_image", self.packages["consort-guest"]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = {f"/{path.relative_to(root)}": path for path in root.rglob("*") if path.is_file() and path != root / "list"}
        self.assertIn(OURS, files)
        files.update({f"/usr/bin/{name}": stack.PROGRAMS / name for name in {*PROGRAMS, *IN_CONTAINER}})
        files["/usr/bin/refuse_vsock"] = stack.BUILD / "bin" / "refuse_vsock"
        commands = [vm.Command(name, (f"/usr/bin/{name}",)) for name in PROGRAMS]
        device, = json.loads(files["/etc/cdi/consort.json"].read_text("ascii"))["devices"]
        mounts = [(mount["hostPath"], mount["containerPath"]) for mount in device["containerEdits"]["mounts"]]
        self.assertIn(("/run/consort-guest", "/run/consort"), mounts)
        lines = {kind: "\n".join(f"{host} {container}" for host, container in mounts if (container == "/run/consort") == (kind == "sockets"))
                 for kind in ("libraries", "sockets")}
        commands.append(vm.Command("container", ("sh", "-c", CONTAINER.format(programs=" ".join(IN_CONTAINER), **lines))))
        folder = self.host.path(self.host.folder)
        shutil.copy(self.kernel.image, folder / "kernel")
        vm.build_initramfs(self.kernel, files, vm.guest_script(commands), folder / "initramfs")

    def apt(self, *arguments):
        return self.host.run("apt-get", "-y", "-q", *arguments, timeout_s=300).stdout

    def test_packages_install_a_domain_computes_and_purge_leaves_nothing(self):
        self.start_libvirt()
        before = self.host.written()

        # The daemon runs as soon as apt is done.
        self.install("consort-host", "consort-cpu")
        self.assertEqual(self.host.run("systemctl", "is-active", "consortd").stdout, "active\n")
        self.assertEqual(self.host.run("systemctl", "is-enabled", "consortd").stdout, "enabled\n")
        self.assertEqual(self.host.run("stat", "-c", "%a %U:%G", "/run/consort/consortd.sock", "/run/consort/consortd.admin.sock").stdout,
                         "666 consort:consort\n660 consort:consort\n")
        main = self.host.run("systemctl", "show", "-P", "MainPID", "consortd").stdout.strip()
        self.assertEqual(self.host.run("ps", "-o", "user=", "-p", main).stdout.strip(), "consort")
        self.host.run("systemctl", "enable", "--now", "consort-libvirt")

        self.in_a_domain()
        self.on_the_host_itself()
        self.upgrade()
        self.assertNotEqual(list(self.host.path("/var/cache/consort").iterdir()), [])
        self.apt("purge", "consort-host", "consort-cpu", "consort-guest", "consort-dev")
        self.expect_nothing_left(before)

    def in_a_domain(self):
        self.make_guest()
        self.host.run("virsh", "-c", "qemu:///system", "define", "/dev/stdin",
                      text=domain.definition(DOMAIN_NAME, self.host.folder, f"{self.host.folder}/serial", self.token))
        plain = self.virsh("dumpxml", DOMAIN_NAME)
        self.ctl("vm", "attach", DOMAIN_NAME, "--tenant", "research", "--vgpus", "1")
        self.assertIn("nothing is missing", self.ctl("vm", "check", DOMAIN_NAME))
        listed, = json.loads(self.ctl("vm", "list", "-o", "json"))
        self.assertEqual((listed["domain"], listed["tenant"], listed["vgpus"], listed["running"]), (DOMAIN_NAME, "research", 1, False))
        self.assertEqual(self.host.run("stat", "-c", "%a %U:%G", f"/run/consort/vms/{DOMAIN_NAME}.sock").stdout, "660 consort:kvm\n")

        # Its programs compute.
        self.virsh("start", DOMAIN_NAME)
        serial = self.wait_for(self.guest_has_ended, GUEST_SECONDS)
        self.assertIn(f"@consort {self.token} exit 0", serial, serial + self.host.journal())
        self.assertEqual(serial.count("PASS"), len(PROGRAMS) + len(IN_CONTAINER), serial)
        # A container without the device is told what it lacks.
        self.assertEqual(len(re.findall(r"Operation not permitted; container runtimes refuse vsock: .* consort\.dev/gpu=all", serial)), 1, serial)
        self.assertRegex(serial, r"reduction: sum \d+ and maximum \d+ of \d+ values")
        accounted = self.wait_for(lambda: [session for session in self.account() if session["application"] == "reduction"])
        for session in accounted:
            self.assertEqual((session["tenant"], session["vm"], session["channel"]), ("research", DOMAIN_NAME, "vhost-user"))
            self.assertGreater(session["kernel_launches"], 0)
        self.assertIn("reduction", self.ctl("report", "--by", "application", "--period", "all"))

        # And back.
        self.ctl("vm", "detach", DOMAIN_NAME)
        self.assertEqual(self.virsh("dumpxml", DOMAIN_NAME), plain)
        self.assertEqual(json.loads(self.ctl("vm", "list", "-o", "json")), [])
        self.virsh("undefine", DOMAIN_NAME)

    def on_the_host_itself(self):
        """For containers and users without rights: the package for guests, beside the daemon."""
        self.install("consort-guest")
        self.assertEqual(self.loader_takes(), OURS)
        shutil.copy(stack.PROGRAMS / "vector_add", self.host.path(self.host.folder))
        shutil.copy(stack.PROGRAMS / "busy", self.host.path(self.host.folder))
        self.assertIn("PASS", self.as_nobody("vector_add"))
        # For containers: systemd starts the proxy, confined, for the first who connects. Its host, by vsock, is not there.
        drop_in = self.host.path("/run/systemd/system") / "consort-guest-proxy.service.d"
        drop_in.mkdir()
        (drop_in / "endpoint.conf").write_text(
            "[Service]\nExecStart=\nExecStart=/usr/lib/consort/bin/consort-guest-proxy --endpoint vsock:2:7000\n", "ascii")
        self.host.run("systemctl", "daemon-reload")
        self.assertEqual(self.host.run("systemctl", "is-active", "consort-guest-proxy.socket", "consort-guest-proxy.service", status=None).stdout,
                         "active\ninactive\n")
        refused = self.host.run("runuser", "-u", "nobody", "--", "env", "CONSORT_ENDPOINT=unix:/run/consort-guest/consortd.sock",
                                f"{self.host.folder}/vector_add", status=1).stdout
        self.assertIn("unix:/run/consort-guest/consortd.sock refused: cannot reach vsock:2:7000", refused)
        self.assertEqual(self.host.run("systemctl", "is-active", "consort-guest-proxy.service").stdout, "active\n")
        shutil.rmtree(drop_in)
        self.host.run("systemctl", "daemon-reload")
        with self.subTest("a container gets the device by the package's CDI file"):
            self.in_podman()
        # For developers: the example as its page says.
        self.install("consort-dev")
        self.host.run("g++", "-std=c++20", "-shared", "-fPIC", "-I", "/usr/include/consort", "/usr/share/doc/consort-dev/examples/best_fit.cc",
                      "-o", f"{self.host.folder}/best_fit.so")
        self.host.run("gcc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", "-x", "c", "-",
                      text="#include <consort/consort.h>\nint main(void) { return consort_release(); }\n")
        # Completion as bash loads it by itself.
        done = self.host.run("bash", "--norc", "-c", ". /usr/share/bash-completion/completions/consortctl\n"
                             'COMP_WORDS=(consortctl vm att) COMP_CWORD=2; _consortctl; echo "completes ${COMPREPLY[*]}"')
        self.assertEqual(done.stdout, "completes attach\n")
        self.assertIn("<!doctype html>", self.host.run("curl", "-sf", "http://127.0.0.1:9825/").stdout)
        self.wait_for(lambda: "vector_add" in self.ctl("report", "--by", "application", "--period", "all"))
        # As logrotate does it, with what the package tells it to do afterwards.
        account = self.host.path("/var/log/consort/account.jsonl")
        account.rename(account.with_suffix(".jsonl.1"))
        self.assertIn("systemctl reload consortd.service", self.host.path("/etc/logrotate.d/consort-host").read_text("utf-8"))
        self.host.run("systemctl", "reload", "consortd.service")
        self.assertIn("PASS", self.as_nobody("vector_add"))
        self.wait_for(lambda: account.exists() and [session["application"] for session in self.account()] == ["vector_add"])
        self.assertIn("reduction", self.ctl("report", "--by", "application", "--period", "all"))
        # A real driver wins, and the package says so. Only the place of the file counts.
        real = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
        shutil.copy(stack.LIBRARY, self.host.path(real))
        self.host.run("ldconfig")
        self.assertIn(self.loader_takes(), (real, real.removeprefix("/usr")))
        said = self.install("consort-guest", "--reinstall")
        self.assertIn("programs go on using it", said)
        # What it says to do for one program. The file that stands for the driver is one of ours, so look at which is loaded.
        self.assertIn("LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/consort PROGRAM", said)
        loaded = self.host.run("env", "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/consort", "LD_DEBUG=libs", f"{self.host.folder}/vector_add").stdout
        self.assertIn(f"calling init: {OURS}", loaded)
        self.host.path(real).unlink()
        self.host.run("ldconfig")

    def in_podman(self):
        """With the folder of the daemon's own socket in the place of the proxy's, which has no vsock here."""
        if not self.host.path("/usr/bin/podman").exists():
            self.skipTest("no podman on this machine")
        container = self.host.path(self.host.folder) / "container"
        program = stack.PROGRAMS / "vector_add"
        libraries = {*libraries_of(program, ()), *libraries_of(stack.LIBRARY, ())}
        for path, place in [(program, "bin/vector_add"), *((path, path.lstrip("/")) for path in libraries)]:
            (container / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, container / place)
        self.host.run("systemctl", "stop", "consort-guest-proxy.socket")
        podman = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--storage-driver", "vfs", "run",
                  "--rm", "--network", "none", "--pids-limit", "-1")
        container = f"{self.host.folder}/container"
        self.assertIn("FAIL", self.host.run(*podman, "--rootfs", container, "/bin/vector_add", status=1).stdout)
        self.host.run("sh", "-c", "mkdir -p /run/consort-guest && mount --bind /run/consort /run/consort-guest")
        try:
            self.assertIn("PASS", self.host.run(*podman, "--device", "consort.dev/gpu=all", "--rootfs", container, "/bin/vector_add").stdout)
        finally:
            self.host.run("umount", "/run/consort-guest")

    def upgrade(self):
        """A new version while a program runs: it takes over in the daemon's process, and the program goes on."""
        main = self.host.run("systemctl", "show", "-P", "MainPID", "consortd").stdout
        watcher = self.host.run("systemctl", "show", "-P", "MainPID", "consort-libvirt").stdout
        with self.host.start("runuser", "-u", "nobody", "--", f"{self.host.folder}/busy", "0.2", "1000", "0", "wait") as running:
            self.assertEqual(running.stdout.readline(), "ready\n")
            newer = []
            for name, package in self.packages.items():
                unpacked = self.local / f"{name}.newer"
                subprocess.run(["dpkg-deb", "-R", package, unpacked], check=True, timeout=60)
                control = unpacked / "DEBIAN" / "control"
                control.write_text(re.sub(r"^Version: .*", "Version: 999", control.read_text("utf-8"), flags=re.MULTILINE), "utf-8")
                newer.append(f"{self.host.folder}/{name}_999.deb")
                subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", unpacked, self.host.path(newer[-1])], check=True,
                               capture_output=True, timeout=60)
            self.assertRegex(self.apt("install", *newer), r"consortd \S+ went on as ")
            self.assertEqual(self.host.run("systemctl", "show", "-P", "MainPID", "consortd").stdout, main)
            self.assertNotEqual(self.host.run("systemctl", "show", "-P", "MainPID", "consort-libvirt").stdout, watcher)
            said, _ = running.communicate("go\n", timeout=120)
            self.assertEqual((running.returncode, said.splitlines()[-1:]), (0, ["PASS"]), said)
        self.assertIn("PASS", self.as_nobody("vector_add"))
        self.host.run("systemctl", "restart", "consortd")
        self.assertIn("PASS", self.as_nobody("vector_add"))

    def loader_takes(self):
        found = re.findall(r"^\s*libcuda\.so\.1 \(.*x86-64.*\) => (\S+)", self.host.run("ldconfig", "-p").stdout, re.MULTILINE)
        return found[0] if found else None

    def as_nobody(self, program):
        """What a program says that runs without rights, and without a word about where library and daemon are."""
        return self.host.run("runuser", "-u", "nobody", "--", f"{self.host.folder}/{program}").stdout

    def install(self, *names_and_options):
        paths = []
        for name in names_and_options:
            if name in self.packages:
                shutil.copy(self.packages[name], self.host.path(self.host.folder))
                name = f"{self.host.folder}/{self.packages[name].name}"
            paths.append(name)
        return self.apt("install", "--no-install-recommends", *paths)

    def guest_has_ended(self):
        file = self.host.path(f"{self.host.folder}/serial")
        serial = file.read_text("ascii", "replace") if file.exists() else ""
        return serial if domain.has_ended(serial, self.token) else None

    def account(self):
        text = self.host.path("/var/log/consort/account.jsonl").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]

    def expect_nothing_left(self, before):
        after = self.host.written()
        self.assertEqual([path for path in after if "consort" in path and after[path]], [])
        left = [path for path, what in after.items()
                if what != before.get(path, machine.describe(path)) and not KEPT_BY_OTHERS.match(path) and
                not (what and machine.stat.S_ISDIR(what[0]) and machine.describe(path))]
        users = [f"/etc/{name}" for name in ("passwd", "group", "shadow", "gshadow")]
        self.assertEqual([path for path in left if path not in users], [])
        for path in users:
            was = set(pathlib.Path(path).read_text("utf-8").splitlines())
            new = set(self.host.path(path).read_text("utf-8").splitlines()) - was
            self.assertEqual([line for line in new if not USERS.match(line)], [], path)
        self.assertNotIn("consort", self.host.run("cat", "/var/lib/dpkg/status").stdout)
        self.assertNotIn("consort", self.host.run("ldconfig", "-p").stdout)
        self.assertEqual(self.host.run("find", "/run", "/tmp", "/var/tmp", "-xdev", "-name", "*consort*", "-not", "-path",
                                       f"{self.host.folder}/*").stdout, "")
        self.assertEqual(self.host.run("systemctl", "list-units", "--all", "--no-legend", "consort*").stdout, "")
        self.assertEqual(self.host.run("ps", "-u", "consort", "-o", "args=", status=None).stdout, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
