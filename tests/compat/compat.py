#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/compat/compat.py: runs other people's programs natively and through Consort, and says what passes.

    compat.py cuda-samples CHECKOUT [--groups 0,1,6] [--built DIR] [--arch 80]
    compat.py library-samples CHECKOUT [--groups cuBLAS,cuFFT] [--built DIR] [--arch 80]   of CUDALibrarySamples
    compat.py scripts FOLDER [--python PYTHON]       every *.py of the folder
    compat.py commands FILE                          lines `name: command` or just `command`

What a program is run with:
    --build DIR           a build of Consort: a consortd of it is started, and its library used (build/dev)
    --device cpu|nvidia|auto, --devices N|FILE       of that consortd (auto)
    --endpoint E --library-dir DIR                   instead of --build: a consortd that runs, and the guest library
    --vm                  in a virtual machine that sees this machine's files (vm_guest.py); one for all programs
    --native yes|no|auto  also on the bare machine, and compare; auto: where there is an NVIDIA device
Which, and how:
    --only NAME,NAME --skip NAME,NAME --seconds N (300) --jobs N (1) --tolerance T (1e-5, relative)
What comes out:
    --table FILE.md --json FILE.json --logs DIR      the table also goes to the standard output
    --expect FILE         lines `name reason why`: programs that are expected not to pass

Exit status: 0 if nothing surprised: what was expected not to pass did not, for that reason, and nothing else
failed. 1: a surprise, an unexpected pass included. 2: wrong usage. docs/TESTING.md, "Other people's programs".
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cuda_samples  # noqa: E402
import library_samples  # noqa: E402
import results  # noqa: E402
import vm_guest  # noqa: E402

READY = "consortd: ready"
START_SECONDS = 60
VM = "programs"  # the machine's name for consortd
# Repositories of samples, and who can read them.
CHECKOUTS = {"cuda-samples": cuda_samples, "library-samples": library_samples}


@dataclasses.dataclass
class Program:
    group: str
    name: str
    command: typing.List[str] = dataclasses.field(default_factory=list)
    folder: typing.Optional[pathlib.Path] = None
    verdict: typing.Optional[results.Verdict] = None  # known without a run
    doubt: str = ""  # a reason that a failure has, where there is one


class Consort:
    """A consortd of a build, and the environment in which a program uses it. Ends with the `with` block."""

    def __init__(self, options, folder):
        self.folder = folder
        self.process = None
        self.environment = dict(os.environ)
        self.environment.pop("CONSORT_ENDPOINT", None)
        self.vm_socket = folder / "vm.sock"
        self.endpoint, self.library = options.endpoint, options.library_dir
        self.options = options

    def __enter__(self):
        if not self.endpoint:
            build = pathlib.Path(self.options.build).resolve()
            self.library = self.library or str(build / "lib")
            socket = self.folder / "consort.sock"
            self.endpoint = f"unix:{socket}"
            command = [str(build / "bin/consortd"), f"--socket={socket}", f"--device={self.options.device}",
                       "--metrics=off", "--vsock-port=off", f"--account={self.folder / 'account.jsonl'}"]
            if self.options.vm:
                command.append(f"--vm={VM}={self.vm_socket}")
            if self.options.devices:
                command.append(f"--devices={self.options.devices}")
            log = open(self.folder / "consortd.log", "w")
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            deadline = time.monotonic() + START_SECONDS
            for line in self.process.stdout:
                if READY in line:
                    break
                if time.monotonic() > deadline:
                    break
            else:
                raise SystemExit(f"compat: consortd did not start:\n{(self.folder / 'consortd.log').read_text()}")
        paths = [self.library, os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment["LD_LIBRARY_PATH"] = ":".join(p for p in paths if p)
        self.environment["CONSORT_ENDPOINT"] = self.endpoint
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def run(program, environment, seconds):
    """Runs the program in its folder, in a session of its own, which is killed whole if it takes too long."""
    started = time.monotonic()
    try:
        process = subprocess.Popen(program.command, env=environment, cwd=program.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   start_new_session=True)
    except OSError as error:
        return results.Run(127, "", str(error))
    late = False
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return results.Run(process.returncode, out, err, time.monotonic() - started, late)


def programs_of_samples(options):
    """Builds what is wanted of a checkout of NVIDIA's samples."""
    samples = CHECKOUTS[options.kind].find_samples(options.what, options.groups)
    samples = [s for s in samples if wanted(s.name, options)]
    nvcc = options.nvcc or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    built = pathlib.Path(options.built or tempfile.mkdtemp(prefix="compat-"))
    cpu = options.device == "cpu"

    def prepare(sample):
        program = Program(sample.group, sample.name)
        if sample.why_not:
            program.verdict = results.Verdict(sample.why_not, sample.detail)
            return program
        folder, error = cuda_samples.build(sample, options.what, built, nvcc, options.arch)
        if error:
            absent = "No such file" in error or "cannot find -l" in error
            program.verdict = results.Verdict("absent-library" if absent else "build", error)
            return program
        program.folder, program.command = folder, [str((folder / sample.name).resolve())]
        machine_code = [lib for lib in sample.libraries if lib in cuda_samples.MACHINE_CODE_LIBRARIES]
        if cpu and machine_code:
            program.doubt = "machine-code:" + ", ".join(machine_code)
        return program

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(prepare, samples))


def programs_of_file(path):
    """Programs of a file of lines `name: command`, or `command`."""
    programs = []
    for line in pathlib.Path(path).read_text().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, command = line.partition(": ")
        if not colon:
            name, command = pathlib.Path(shlex.split(line)[0]).name, line
        programs.append(Program("", name.strip(), shlex.split(command)))
    return programs


def programs_of_folder(folder, python):
    """A program for each Python script of a folder."""
    scripts = sorted(pathlib.Path(folder).glob("*.py"))
    return [Program("", script.stem, [python, str(script.resolve())], script.parent.resolve()) for script in scripts]


def wanted(name, options):
    return (not options.only or name in options.only) and name not in options.skip


def through_socket(program, options):
    """Runs the program with a consortd of its own: one that is meant to fault takes its neighbours' device away."""
    with tempfile.TemporaryDirectory(prefix="compat-") as folder, Consort(options, pathlib.Path(folder)) as consort:
        through = run(program, consort.environment, options.seconds)
        if options.logs and consort.process is not None:
            shutil.copy(pathlib.Path(folder) / "consortd.log", options.logs / f"{program.name}.consortd")
        return through


@contextlib.contextmanager
def through_guest(options):
    """A virtual machine with a consortd of its own. Yields what runs a program there."""
    variables = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CONSORT_LOG") if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="compat-") as folder, Consort(options, pathlib.Path(folder)) as consort, \
            vm_guest.Guest(consort.vm_socket, consort.library, folder) as guest:
        yield lambda program: guest.run(program.command, program.folder or "/", variables, options.seconds)
        if options.logs:
            shutil.copy(pathlib.Path(folder) / "consortd.log", options.logs / "consortd.log")


def check(program, options):
    """Runs one program as often as needed; returns its Row."""
    row = results.Row(program.group, program.name, program.verdict or results.Verdict(),
                      expected=options.expected.get(program.name, ""))
    if program.verdict is not None:
        return row
    native = None
    bare = {k: v for k, v in os.environ.items() if k != "CONSORT_ENDPOINT"}
    if options.native:
        native = run(program, bare, options.seconds)
        row.native_seconds = native.seconds
    through = options.through(program)
    row.seconds = through.seconds
    row.verdict = results.judge(through, native, options.tolerance)
    if row.verdict.reason == "differs":
        again = run(program, bare, options.seconds)
        row.verdict = results.judge(through, native, options.tolerance, again)
    if not row.verdict.passed and not row.verdict.cannot and program.doubt:
        reason, _, detail = program.doubt.partition(":")
        row.verdict = results.Verdict(reason, f"{detail} ({row.verdict.detail})")
    if options.logs:
        for kind, one in (("native", native), ("consort", through)):
            if one is not None:
                text = f"{one.out}\n--- stderr\n{one.err}\n--- status {one.status}, {one.seconds:.1f} s\n"
                (options.logs / f"{program.name}.{kind}").write_text(text)
    return row


def parse(arguments):
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    parser.add_argument("kind", choices=(*CHECKOUTS, "scripts", "commands"))
    parser.add_argument("what", type=pathlib.Path)
    names = {"type": lambda text: [name for name in text.split(",") if name], "default": []}
    for flag in ("--groups", "--only", "--skip"):
        parser.add_argument(flag, **names)
    for flag in ("--endpoint", "--library-dir", "--devices", "--built", "--nvcc", "--table", "--json", "--expect"):
        parser.add_argument(flag)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "nvidia"))
    parser.add_argument("--vm", action="store_true")
    parser.add_argument("--native", default="auto", choices=("auto", "yes", "no"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--arch", default="80")
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    options = parser.parse_args(arguments)
    if bool(options.endpoint) != bool(options.library_dir) and options.endpoint:
        parser.error("--endpoint needs --library-dir")
    if options.vm and options.endpoint:
        parser.error("--vm needs a consortd of its own: --build, not --endpoint")
    options.native = options.native == "yes" or (options.native == "auto" and os.path.exists("/dev/nvidiactl"))
    try:
        options.expected = results.read_expectations(pathlib.Path(options.expect).read_text()) if options.expect else {}
    except (OSError, ValueError) as error:
        parser.error(f"--expect: {error}")
    return options


def main(arguments):
    options = parse(arguments)
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    if options.kind in CHECKOUTS:
        programs = programs_of_samples(options)
    elif options.kind == "scripts":
        programs = programs_of_folder(options.what, options.python)
    else:
        programs = programs_of_file(options.what)
    programs = [program for program in programs if wanted(program.name, options)]
    rows = []
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        if options.vm:
            options.through = stack.enter_context(through_guest(options))
        else:
            options.through = lambda program: through_socket(program, options)
        for row in pool.map(lambda program: check(program, options), programs):
            rows.append(row)
            print(f"{row.word:16} {row.name:32} {row.seconds or 0:6.1f} s  {row.verdict.reason} {row.verdict.detail}",
                  file=sys.stderr, flush=True)
    text = results.table(rows, f"{options.kind}: {options.device} device")
    print(text)
    if options.table:
        pathlib.Path(options.table).write_text(text)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    surprises = [row.name for row in rows if row.surprise]
    if surprises:
        print(f"not as expected: {', '.join(surprises)}", file=sys.stderr)
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
