# SPDX-License-Identifier: Apache-2.0
"""tests/compat/results.py: what one run of a program means, and whether two runs agree.

Pure functions. A Run is what a process left behind; judge() makes a Verdict of one Run (the program's own
opinion of itself) or of two (natively and through Consort). Reasons are typed: REASONS has all of them, and
those of CANNOT are no failures of Consort, each for the reason given.
"""

import dataclasses
import re
import typing

REASONS = {
    # what this machine or this device cannot do: not a failure
    "graphics": "needs OpenGL, Vulkan or another interface of graphics",
    "other-platform": "is made for another platform or for a display's interface",
    "other-hardware": "needs hardware or system software that is not a CUDA device",
    "absent-library": "needs a library that is not on this machine",
    "machine-code": "needs a library whose kernels are machine code for GPUs, without PTX",
    "broken-checkout": "a file is missing in the checkout",
    "broken-natively": "fails on the bare machine too",
    "build": "does not build with the toolkit of this machine",
    "waived": "says itself that it cannot run on such a device",
    "refused": "uses what is refused by name",
    "interactive": "waits for a person",
    # failures
    "unsupported": "calls what the library says it does not support",
    "instruction": "its kernels use what the device does not compile",
    "crash": "ended by a signal",
    "timeout": "took too long",
    "withheld": "runs natively, and says through Consort that the device lacks what it needs",
    "differs": "ended well but its results differ from the native ones",
    "wrong": "says itself that its results are wrong",
    "failed": "ended with an error",
}
CANNOT = ("graphics", "other-platform", "other-hardware", "absent-library", "machine-code", "broken-checkout", "build",
          "broken-natively", "waived", "refused", "interactive")

EXIT_WAIVED = 2  # of the samples: helper_cuda.h's users and NVIDIA's own test runner


@dataclasses.dataclass
class Run:
    status: int  # exit status; negative: the signal
    out: str
    err: str
    seconds: float = 0.0
    timed_out: bool = False


@dataclasses.dataclass
class Verdict:
    reason: str = ""  # "" is a pass
    detail: str = ""

    @property
    def passed(self):
        return self.reason == ""

    @property
    def cannot(self):
        return self.reason in CANNOT


_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
# A line that states a time, a rate or a moment differs from run to run: its numbers are not compared.
_MEASURED = re.compile(
    r"\b(?:[munp]?s(?:ec(?:ond)?s?)?|milliseconds?|microseconds?|[KMGT]i?[Bb](?:ytes)?/s(?:ec)?|[KMGT]?[Ff][Ll][Oo][Pp]s?/?s?"
    r"|[KMG]?Hz|fps|cycles?|clocks?|[Tt]ime|[Tt]hroughput|[Bb]andwidth|[Ss]peed-?[Uu]p|per second|/s)\b")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_SAYS_WRONG = re.compile(
    r"Result\s*=\s*FAIL|[Tt]est (?:has )?(?:FAILED|failed)|\bFAILED\b|mismatch|^FAIL\b|verification.*fail", re.M)
_SAYS_UNSUPPORTED = re.compile(r"(\w+) is not supported yet|consort: (?:[\w ]+: )?(.*not supported.*)")
_SAYS_WAIVED = re.compile(r"waiv|not supported on|requires? .*(?:GPU|device|compute|SM)|at least two|two or more", re.I)
_CUDA_ERROR = re.compile(r"(CUDA_ERROR_\w+|cudaError\w+|CUDA error[^\n]*|\(\w+Error\w*\)[^\n]*|error: [^\n]*)")


def measured(line):
    """True if the numbers of `line` are measurements of this run."""
    return bool(_MEASURED.search(line))


def lines_to_compare(text):
    """What a run said, without what no two runs share: measurements, addresses, empty lines."""
    return [_ADDRESS.sub("0x", line).strip() for line in text.splitlines() if line.strip() and not measured(line)]


def agree(first, second, tolerance, again=None):
    """"" if two outputs say the same: equal but for numbers within `tolerance`, relative; else the first difference.

    `again`: what a second run of the first said. What differs between those two is not compared.
    """
    one, other = lines_to_compare(first), lines_to_compare(second)
    repeated = one if again is None else lines_to_compare(again)
    for left, right, same in zip(one, other, repeated):
        if right == left or same != left:
            continue
        if _NUMBER.sub("#", left) != _NUMBER.sub("#", right):
            return f"{left!r} and {right!r}"
        for a, b in zip(_NUMBER.findall(left), _NUMBER.findall(right)):
            if a != b and abs(float(a) - float(b)) > tolerance * max(abs(float(a)), abs(float(b))):
                return f"{a} and {b} in {left!r}"
    if len(one) != len(other) and len(one) == len(repeated):
        longer = one if len(one) > len(other) else other
        return f"one says more: {longer[min(len(one), len(other))]!r}"
    return ""


def judge_alone(run):
    """The verdict on a run that is compared with nothing: status, and what the program says of itself."""
    text = run.out + "\n" + run.err
    if run.timed_out:
        return Verdict("timeout", f"more than {run.seconds:.0f} s")
    unsupported = _SAYS_UNSUPPORTED.search(run.err)
    said = (unsupported.group(1) or unsupported.group(2)) if unsupported else ""
    if run.status == EXIT_WAIVED and not said:
        waived = [line.strip() for line in text.splitlines() if _SAYS_WAIVED.search(line)]
        return Verdict("waived", (waived or [text.strip().splitlines()[-1] if text.strip() else ""])[0][:160])
    if run.status == 0 and not _SAYS_WRONG.search(text):
        return Verdict()
    if said:
        return Verdict("unsupported", said[:160])
    if run.status < 0:
        return Verdict("crash", f"signal {-run.status}")
    error = _CUDA_ERROR.search(text)
    if error is None and _SAYS_WRONG.search(text):
        return Verdict("wrong", next(line.strip() for line in text.splitlines() if _SAYS_WRONG.search(line))[:160])
    if run.status == 0:
        return Verdict("wrong", error.group(0)[:160])
    return Verdict("failed", error.group(0)[:160] if error else f"status {run.status}")


def judge(run, native, tolerance, again=None):
    """The verdict on `run`; `native` is the same program on the bare machine, None where there is none.

    `again` is one more run on the bare machine: what a program says differently each time is no difference of Consort's.
    """
    alone = judge_alone(run)
    if native is None:
        return alone
    bare = judge_alone(native)
    if not bare.passed:
        reason = "waived" if bare.reason == "waived" else "broken-natively"
        # What runs here and not there is no pass that anybody may rely on.
        return Verdict(reason, f"{bare.reason}: {bare.detail}")
    if alone.reason == "waived":
        return Verdict("withheld", alone.detail)
    if not alone.passed:
        return alone
    difference = agree(native.out, run.out, tolerance, again.out if again else None)
    return Verdict("differs", difference[:200]) if difference else Verdict()


@dataclasses.dataclass
class Row:
    """One line of the table."""
    group: str
    name: str
    verdict: Verdict
    seconds: typing.Optional[float] = None  # through Consort; None: not run
    native_seconds: typing.Optional[float] = None
    expected: str = ""  # the reason why it was expected not to pass

    @property
    def surprise(self):
        """True if the outcome is not the expected one, a pass that nobody expected included."""
        if self.expected:
            return self.verdict.reason != self.expected
        return not (self.verdict.passed or self.verdict.cannot)

    @property
    def word(self):
        if self.verdict.passed:
            return "UNEXPECTED PASS" if self.expected else "PASS"
        return "CANNOT" if self.verdict.cannot else "FAIL"


def read_expectations(text):
    """{name: reason} of lines `name reason why...`; "#" begins a comment. ValueError: an unknown reason."""
    expected = {}
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 3 or words[1] not in REASONS:
            raise ValueError(f"not `name reason why`: {line}")
        expected[words[0]] = words[1]
    return expected


def table(rows, title):
    """Markdown: counts, then a row a program, in the order given."""
    counts = {}
    for row in rows:
        counts[row.word] = counts.get(row.word, 0) + 1
    lines = [f"# {title}", "", ", ".join(f"{counts[word]} {word}" for word in sorted(counts)) + ".", "",
             "| folder | program | | why | seconds | natively |", "|---|---|---|---|---|---|"]
    for row in rows:
        why = row.verdict.reason + (f": {row.verdict.detail}" if row.verdict.detail else "")
        seconds = ["" if s is None else f"{s:.1f}" for s in (row.seconds, row.native_seconds)]
        cells = [row.group, row.name, row.word, why if row.verdict.reason else "", *seconds]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    reasons = sorted({row.verdict.reason for row in rows if row.verdict.reason})
    if reasons:
        lines += [""] + [f"- `{reason}`: {REASONS[reason]}" for reason in reasons]
    return "\n".join(lines) + "\n"
