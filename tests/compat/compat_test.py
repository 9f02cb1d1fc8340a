# SPDX-License-Identifier: Apache-2.0
"""The runner of other people's programs: what it makes of outputs, of a checkout and of a list, without CUDA."""

import argparse
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compat  # noqa: E402
import cuda_samples  # noqa: E402
import library_samples  # noqa: E402
import results  # noqa: E402


def ran(out="", err="", status=0, **more):
    return results.Run(status, out, err, **more)


class AgreeTest(unittest.TestCase):
    def test_numbers_agree_within_the_tolerance_and_words_exactly(self):
        self.assertEqual(results.agree("sum = 1.000001", "sum = 1.000002", 1e-5), "")
        self.assertIn("1.0001", results.agree("sum = 1.0001", "sum = 1.0002", 1e-5))
        self.assertNotEqual(results.agree("a 1", "b 1", 1), "")
        self.assertNotEqual(results.agree("x = 0", "x = 1e-9", 1e-5), "")

    def test_measurements_and_addresses_are_left_out(self):
        self.assertEqual(results.agree("took 3.2 ms\nsum 5\np = 0x7f00", "took 9 ms\nsum 5\np = 0x12", 0), "")
        self.assertEqual(results.agree("Throughput = 12 GB/s", "", 0), "")

    def test_missing_lines_are_a_difference(self):
        self.assertIn("says more", results.agree("a\nb", "a", 0))

    def test_what_two_native_runs_say_differently_is_left_out(self):
        self.assertEqual(results.agree("seed 1\nsum 5", "seed 3\nsum 5", 0, again="seed 2\nsum 5"), "")
        self.assertNotEqual(results.agree("seed 1\nsum 5", "seed 3\nsum 6", 0, again="seed 2\nsum 5"), "")
        self.assertNotEqual(results.agree("a\nb", "a", 0, again="a\nb"), "")
        self.assertEqual(results.agree("a\nb", "a", 0, again="a"), "")


class JudgeTest(unittest.TestCase):
    def test_a_program_that_ends_well_and_does_not_complain_passes(self):
        self.assertTrue(results.judge_alone(ran("Test PASSED")).passed)

    def test_its_own_complaint_counts_whatever_its_status(self):
        self.assertEqual(results.judge_alone(ran("Result = FAIL")).reason, "wrong")
        self.assertEqual(results.judge_alone(ran("Test FAILED", status=1)).reason, "wrong")

    def test_reasons_have_types(self):
        cases = {
            "timeout": ran(status=-9, timed_out=True),
            "crash": ran(status=-11),
            "waived": ran("Two or more GPUs are required", status=2),
            "unsupported": ran(err="consort: cuFoo is not supported yet: it returns CUDA_ERROR", status=1),
            "failed": ran("CUDA error at a.cu:1 code=2", status=1),
        }
        for reason, run in cases.items():
            self.assertEqual(results.judge_alone(run).reason, reason)
        self.assertIn("cuFoo", results.judge_alone(cases["unsupported"]).detail)

    def test_what_the_library_refused_is_no_waiver(self):
        run = ran("needs", "consort: cuFoo is not supported yet: it returns X", status=2)
        self.assertEqual(results.judge_alone(run).reason, "unsupported")

    def test_another_result_than_natively_is_told_apart_from_failure(self):
        self.assertEqual(results.judge(ran("sum 2"), ran("sum 1"), 1e-5).reason, "differs")
        self.assertTrue(results.judge(ran("sum 1"), ran("sum 1"), 1e-5).passed)
        self.assertEqual(results.judge(ran("sum 1", status=1), ran("sum 1"), 1e-5).reason, "failed")

    def test_what_is_broken_natively_says_nothing_of_consort(self):
        verdict = results.judge(ran("sum 1"), ran(status=1), 1e-5)
        self.assertEqual(verdict.reason, "broken-natively")
        self.assertTrue(verdict.cannot)

    def test_a_waiver_counts_only_where_it_is_given_natively_too(self):
        waived = ran("Two or more GPUs are required", status=2)
        self.assertTrue(results.judge(waived, waived, 0).cannot)
        self.assertEqual(results.judge(waived, ran("sum 1"), 0).reason, "withheld")
        self.assertFalse(results.judge(waived, ran("sum 1"), 0).cannot)


class TableTest(unittest.TestCase):
    def row(self, verdict, expected=""):
        return results.Row("g", "n", verdict, 1.0, None, expected)

    def test_expectations_are_held_both_ways(self):
        passed, wrong = results.Verdict(), results.Verdict("wrong", "x")
        self.assertFalse(self.row(passed).surprise)
        self.assertTrue(self.row(wrong).surprise)
        self.assertFalse(self.row(wrong, "wrong").surprise)
        self.assertTrue(self.row(wrong, "timeout").surprise)
        self.assertTrue(self.row(passed, "wrong").surprise)
        self.assertEqual(self.row(passed, "wrong").word, "UNEXPECTED PASS")
        self.assertFalse(self.row(results.Verdict("graphics")).surprise)

    def test_the_table_escapes_and_explains(self):
        text = results.table([self.row(results.Verdict("wrong", "a|b\nc")), self.row(results.Verdict())], "t")
        self.assertIn("wrong: a\\|b c", text)
        self.assertIn("1 FAIL, 1 PASS", text)
        self.assertIn("- `wrong`: ", text)

    def test_expectations_are_checked_when_read(self):
        self.assertEqual(results.read_expectations("# c\na timeout slow # why\n"), {"a": "timeout"})
        for bad in ("a", "a timeout", "a nonsense why"):
            with self.assertRaises(ValueError):
                results.read_expectations(bad)


class CheckoutTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def sample(self, name, makefile, *sources, group="0_Introduction"):
        folder = self.root / "Samples" / group / name
        folder.mkdir(parents=True)
        (folder / "CMakeLists.txt").write_text(textwrap.dedent(makefile))
        for source in sources:
            (folder / source).write_text("")
        return folder

    def test_sources_libraries_and_images_are_read(self):
        self.sample("drv", """
            find_package(CUDAToolkit REQUIRED) # not (a library)
            add_executable(drv drv.cpp
              kernel.cu)
            target_link_libraries(drv PUBLIC CUDA::cuda_driver CUDA::cublas_static pthread)
            set(CUDA_FATBIN_FILE "${CMAKE_CURRENT_BINARY_DIR}/k64.fatbin")
            set(CUDA_KERNEL_SOURCE "${CMAKE_CURRENT_SOURCE_DIR}/k.cu")
            """, "drv.cpp", "kernel.cu", "k.cu")
        (sample,) = cuda_samples.find_samples(self.root, ["0"])
        self.assertEqual(sample.sources, ["drv.cpp", "kernel.cu"])
        self.assertEqual(sample.libraries, ["cublas", "pthread"])
        self.assertEqual(sample.images, [("k.cu", "k64.fatbin")])
        self.assertEqual(sample.why_not, "")
        image, program = cuda_samples.build_commands(sample, "Common", pathlib.Path("out"), "nvcc", "75")
        self.assertIn("-fatbin", image)
        self.assertIn("-lcublas", program)
        self.assertIn("-gencode=arch=compute_75,code=compute_75", program)
        self.assertNotIn("-rdc=true", program)

    def test_programs_of_libraries_are_those_with_a_main(self):
        main, none = "int main(int argc, char** argv) {", "int helper() {"
        (self.root / "cuBLAS/utils").mkdir(parents=True)
        for path, text in {"cuBLAS/Level-1/dot/a_dot.cu": main, "cuBLAS/Level-1/dot/b_dotc.cu": main,
                           "cuBLAS/Level-3/gemm/main.cpp": main, "cuBLAS/Level-3/gemm/work.cu": none}.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            (file.parent / "CMakeLists.txt").touch()
        samples = {s.name: s for s in library_samples.find_samples(self.root)}
        self.assertEqual({name: s.sources for name, s in samples.items()},
                         {"a_dot": ["a_dot.cu"], "b_dotc": ["b_dotc.cu"], "gemm": ["main.cpp", "work.cu"]})
        (command,) = cuda_samples.build_commands(samples["gemm"], "Common", pathlib.Path("out"))
        self.assertIn("-lcublas", command)
        self.assertIn(f"-I{self.root / 'cuBLAS/utils'}", command)
        self.assertEqual(library_samples.find_samples(self.root, ["cuFFT"]), [])

    def test_what_cannot_be_built_here_has_its_reason(self):
        self.sample("gl", "find_package(OpenGL)\nadd_executable(gl a.cpp)", "a.cpp")
        self.sample("mpi", "find_package(MPI REQUIRED)\nadd_executable(mpi a.cpp)", "a.cpp")
        self.sample("gone", "add_executable(gone missing.cu)")
        self.sample("simpleD3D12", "add_executable(simpleD3D12 a.cpp)", "a.cpp", group="5_Domain")
        reasons = {s.name: s.why_not for s in cuda_samples.find_samples(self.root)}
        self.assertEqual(reasons, {"gl": "graphics", "mpi": "absent-library", "gone": "broken-checkout",
                                   "simpleD3D12": "other-platform"})

    def test_device_code_of_several_units_is_linked(self):
        folder = self.sample("two", "add_executable(two a.cu b.cu)", "a.cu", "b.cu")
        (folder / "a.cu").write_text("extern __device__ int shared;")
        (sample,) = cuda_samples.find_samples(self.root)
        self.assertTrue(sample.separable)

    def test_a_failure_that_was_doubted_has_that_reason(self):
        program = compat.Program("g", "n", doubt="machine-code:why")
        for run, reason in ((ran("no kernel", status=1), "machine-code"), (ran("all is well"), "")):
            options = argparse.Namespace(expected={}, native=False, tolerance=0, logs=None, through=lambda _, run=run: run)
            self.assertEqual(compat.check(program, options).verdict.reason, reason)

    def test_groups_limit_the_folders(self):
        self.sample("a", "add_executable(a a.cu)", "a.cu")
        self.sample("b", "add_executable(b b.cu)", "b.cu", group="6_Performance")
        self.assertEqual([s.name for s in cuda_samples.find_samples(self.root, ["6"])], ["b"])


class RunnerTest(unittest.TestCase):
    """The whole runner over a list of commands, against an endpoint that none of them uses."""

    def run_list(self, lines, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "list"
            path.write_text(lines)
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                status = compat.main(["commands", str(path), "--endpoint", "unix:/nowhere", "--library-dir", "/nowhere",
                                      "--native", "no", "--json", f"{folder}/json", "--logs", f"{folder}/logs", *options])
            rows = {row["name"]: row["verdict"]["reason"] for row in json.loads((pathlib.Path(folder) / "json").read_text())}
            return status, rows, said.getvalue()

    def test_each_command_gets_a_verdict_and_the_status_says_whether_one_surprised(self):
        status, rows, text = self.run_list("# programs\ngood: true\nbad: false\nslow: sleep 600\n", "--seconds", "0.3")
        self.assertEqual(rows, {"good": "", "bad": "failed", "slow": "timeout"})
        self.assertEqual(status, 1)
        self.assertIn("| good | PASS |", text)
        status, rows, _ = self.run_list("good: true\nbad: false\n", "--skip", "bad")
        self.assertEqual((status, rows), (0, {"good": ""}))

    def test_the_environment_names_the_library_and_the_endpoint(self):
        status, rows, _ = self.run_list('env: sh -c "test $CONSORT_ENDPOINT = unix:/nowhere && '
                                        'case $LD_LIBRARY_PATH in /nowhere*) ;; *) exit 1;; esac"\n')
        self.assertEqual((status, rows), (0, {"env": ""}))

    def test_both_runs_are_compared(self):
        line = 'where: sh -c "echo ${CONSORT_ENDPOINT:-none}"\n'
        _, rows, _ = self.run_list(line, "--native", "yes")
        self.assertEqual(rows, {"where": "differs"})

    def test_an_expected_failure_is_none_and_an_unexpected_pass_is_one(self):
        with tempfile.NamedTemporaryFile("w") as expected:
            expected.write("bad failed it always does\n")
            expected.flush()
            status, _, _ = self.run_list("bad: false\n", "--expect", expected.name)
            self.assertEqual(status, 0)
            status, _, text = self.run_list("bad: true\n", "--expect", expected.name)
            self.assertEqual(status, 1)
            self.assertIn("UNEXPECTED PASS", text)

    def test_a_program_that_is_not_there_fails(self):
        _, rows, _ = self.run_list("none: /nowhere/program\n")
        self.assertEqual(rows, {"none": "failed"})


if __name__ == "__main__":
    unittest.main()
