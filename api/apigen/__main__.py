# SPDX-License-Identifier: Apache-2.0
"""The generator of everything that follows from api/cuda/*.toml and api/errors.toml.

    python3 api/apigen --toolkit DIR --out DIR   writes gen/ (what the build runs); fails if the committed
                                                 opcodes.lock or coverage page do not match
    python3 api/apigen --toolkit DIR --update    renews api/cuda/opcodes.lock and docs/api_coverage.md
    python3 api/apigen --toolkit DIR --check     fails if those two are stale
"""

import argparse
import pathlib
import sys
import tomllib

import description as desc
import emit_docs
import emit_errors
import emit_guest
import emit_host
import emit_wire
import toolkit

LOCK_HEAD = ("# Request and event numbers on the wire. Append only: a number is never reused or changed.\n"
             "# Renewed by ./dev gen.\n")


def lock_text(old, description, missing):
    entries = {**description.requests, **description.events}
    text = old if old else LOCK_HEAD
    return text + "".join(f"{name} {entries[name].opcode}\n" for name in missing)


def write_if_changed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(prog="apigen", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toolkit", default="/usr/local/cuda", help="CUDA Toolkit 13")
    parser.add_argument("--out", help="folder that gen/ goes to")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    repo = pathlib.Path(__file__).resolve().parents[2]
    include = pathlib.Path(options.toolkit) / "include"
    lock = repo / "api/cuda/opcodes.lock"
    page = repo / "docs/api_coverage.md"
    try:
        symbols = toolkit.load(include)
        description = desc.load(repo / "api")
        desc.check(description, symbols)
        old_lock = lock.read_text() if lock.exists() else ""
        missing = desc.assign_opcodes(description, old_lock)
        cuda_h = (include / "cuda.h").read_text()
        error_table = emit_errors.table(tomllib.loads((repo / "api/errors.toml").read_text()),
                                        emit_errors.results(cuda_h))
    except desc.DescriptionError as error:
        print(f"apigen: {error}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        print(f"apigen: {error.filename} not found; is --toolkit a CUDA Toolkit 13?", file=sys.stderr)
        return 1
    coverage = emit_docs.coverage(description, symbols)

    if options.update:
        write_if_changed(lock, lock_text(old_lock, description, missing))
        write_if_changed(page, coverage)
        return 0
    if missing:
        print(f"apigen: {missing[0]} has no number in api/cuda/opcodes.lock; run ./dev gen and commit it",
              file=sys.stderr)
        return 1
    if options.check:
        if not page.exists() or page.read_text() != coverage:
            print("apigen: docs/api_coverage.md is stale; run ./dev gen and commit it", file=sys.stderr)
            return 1
        return 0
    if not options.out:
        parser.error("one of --out, --update, --check")

    out = pathlib.Path(options.out) / "gen"
    files = {
        "wire/opcodes.h": emit_wire.opcodes(description),
        "wire/requests.h": emit_wire.requests(description),
        "guest/calls.h": emit_guest.calls_header(description, symbols),
        "guest/unsupported.cc": emit_guest.unsupported(description, symbols),
        "guest/proc_table.cc": emit_guest.proc_table(description, symbols),
        "guest/exports.map": emit_guest.export_map(description),
        "host/handlers.h": emit_host.handlers(description),
        "host/dispatch.cc": emit_host.dispatch(description, symbols),
        "device/driver_table.h": emit_host.driver_table(description, symbols),
        "errors/error_table.h": error_table,
        "check/signatures_check.cc": emit_guest.signatures_check(description, symbols, cuda_h),
    }
    for section in description.sections:
        files[f"guest/entries_{section}.cc"] = emit_guest.entries(description, symbols, section)
    for name, text in files.items():
        write_if_changed(out / name, text)
    write_if_changed(out / "stamp", "")
    return 0


sys.exit(main())
