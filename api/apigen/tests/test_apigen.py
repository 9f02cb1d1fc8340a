# SPDX-License-Identifier: Apache-2.0
"""The generator against small descriptions of its own: what it accepts, what it refuses and why."""

import pathlib
import tempfile
import unittest

import description as desc
import emit_errors
import emit_guest
import emit_host
import emit_wire
import toolkit

HEADER = """
typedef CUresult (CUDAAPI *PFN_cuToy_v2000)(unsigned int value);
typedef CUresult (CUDAAPI *PFN_cuToy_v4000)(size_t bytes, CUstream hStream);
typedef CUresult (CUDAAPI *PFN_cuToy_v7000_ptsz)(size_t bytes, CUstream hStream);
typedef CUresult (CUDAAPI *PFN_cuToy_v9000)(size_t bytes, CUstream hStream, void *extra);
typedef CUresult (CUDAAPI *PFN_cuName_v2000)(char *name, const CUuuid *uuid, char id[16]);
typedef CUresult (CUDAAPI *PFN_cuOther_v2000)(void);
typedef CUresult (CUDAAPI *PFN_cuPair_v2000)(CUstream first, CUstream second);
typedef CUresult (CUDAAPI *PFN_cuFill_v2000)(CUdeviceptr at, size_t N);
typedef CUresult (CUDAAPI *PFN_cuTime_v2000)(float *millis);
"""

TOY = """
[call.cuToy_v2]
guest = "generated"
reply = "none"
cost = "kernel"
[call.cuToy_v2.params]
bytes = "size"
hStream = "stream"
"""

TIME = """
[call.cuTime]
guest = "generated"
reply = "values"
[call.cuTime.params]
millis = "out f32 null=CUDA_ERROR_INVALID_HANDLE"
"""

FILL = """
[call.cuFill]
guest = "generated"
reply = "none"
[call.cuFill.params]
at = "devptr range=N*4 align=4"
N = "size"
"""


def description_of(text, exports=("cuToy", "cuToy_v2", "cuToy_v2_ptsz", "cuName", "cuOther", "cuPair",
                                     "cuFill", "cuTime")):
    folder = tempfile.TemporaryDirectory()
    root = pathlib.Path(folder.name)
    (root / "cuda").mkdir()
    (root / "cuda/toy.toml").write_text(text)
    (root / "cuda/exports.txt").write_text("\n".join(exports))
    (root / "device.toml").write_text("required = []\noptional = []\n")
    with folder:
        return desc.load(root)


def checked(text):
    description = description_of(text)
    desc.check(description, toolkit.parse([HEADER]))
    desc.assign_opcodes(description, "")
    return description


class Toolkit(unittest.TestCase):
    def test_orders_versions_into_symbols(self):
        symbols = toolkit.parse([HEADER])
        self.assertEqual({n: s.version for n, s in symbols.items() if s.base == "cuToy"},
                         {"cuToy": 2000, "cuToy_v2": 4000, "cuToy_v3": 9000, "cuToy_v2_ptsz": 7000})

    def test_reads_pointers_and_arrays(self):
        parameters = toolkit.parse([HEADER])["cuName"].parameters
        self.assertEqual(parameters[0], toolkit.Parameter("char *", "name"))
        self.assertEqual(parameters[2], toolkit.Parameter("char *", "id"))


class Description(unittest.TestCase):
    def refuses(self, text, message):
        with self.assertRaisesRegex(desc.DescriptionError, message):
            checked(text)

    def test_accepts_a_matching_call(self):
        self.assertEqual(list(checked(TOY).requests), ["cuToy_v2"])

    def test_refuses_parameters_that_differ_from_the_header(self):
        self.refuses(TOY.replace("bytes =", "count ="), "differ from the header")
        self.refuses(TOY.replace('"size"', '"u32"'), "is 'size_t' in the header, not u32")

    def test_refuses_unknown_words(self):
        self.refuses(TOY.replace("reply", "replies"), "unknown key 'replies'")
        self.refuses(TOY.replace('"size"', '"sized"'), "unknown kind")

    def test_work_on_a_stream_says_what_it_costs(self):
        self.refuses(TOY.replace('cost = "kernel"\n', ""), "cuToy_v2: works on a stream: cost must be one of")
        self.refuses(TOY.replace('"kernel"', '"dear"'), "cost must be one of none, kernel")
        # A question about a stream is no work.
        checked(TOY.replace('cost = "kernel"', "observes = true"))

    def test_the_host_knows_the_cost_of_each_request(self):
        toy = checked(TOY)
        self.assertIn("kcuToy_v2:\n      return RequestCost::kKernel;", "\n".join(emit_host.kinds_of(toy, "cost", desc.COSTS)))

    def test_a_request_cannot_be_done_again_unless_it_says_so(self):
        unsaid = "\n".join(emit_host.kinds_of(checked(TOY), "redo", desc.REDOS))
        self.assertNotIn("kcuToy_v2", unsaid)
        said = checked(TOY.replace('cost = "kernel"', 'cost = "kernel"\nredo = "again"'))
        self.assertIn("kcuToy_v2:\n      return RequestRedo::kAgain;",
                      "\n".join(emit_host.kinds_of(said, "redo", desc.REDOS)))
        self.refuses(TOY.replace('cost = "kernel"', 'cost = "kernel"\nredo = "twice"'), "redo must be one of spoils")

    def test_the_host_knows_what_a_request_comes_after(self):
        order = "\n".join(emit_host.order_of(checked(TOY)))
        self.assertIn("order->stream = request.hStream;", order)
        self.assertNotIn("order->records", order)
        mark = ('[call.cuOther]\nguest = "written"\nsends = ["Mark"]\n[request.Mark]\ndoc = "x"\nreply = "none"\n'
                'order = "context"\nrecords = true\nfields = { event = "event" }\n')
        order = "\n".join(emit_host.order_of(checked(mark)))
        for line in ("order->context = true;", "order->records = true;",
                     "order->events[order->event_count++] = request.event;"):
            self.assertIn(line, order)
        self.refuses(mark.replace('"context"', '"sometime"'), "order must be one of")

    def test_refuses_a_generated_call_with_two_streams(self):
        pair = ('[call.cuPair]\nguest = "generated"\nreply = "none"\n'
                '[call.cuPair.params]\nfirst = "stream"\nsecond = "stream"\n')
        self.refuses(pair, "streams first and second: .*write this one by hand")

    def test_refuses_another_answer_to_null_where_none_is_given(self):
        self.refuses(TOY.replace('"size"', '"size null=CUDA_ERROR_INVALID_HANDLE"'), "belongs to an `out`")
        self.refuses(TIME.replace("null=CUDA_ERROR_INVALID_HANDLE", "null=0"), "belongs to an `out`")

    def test_refuses_names_that_are_not_exported(self):
        self.refuses('[call.cuMissing]\nguest = "written"\n', "not exported")

    def test_refuses_a_request_that_nobody_sends(self):
        self.refuses('[request.Lonely]\ndoc = "x"\nreply = "none"\n', "no call sends it")

    def test_refuses_an_alias_of_another_signature(self):
        self.refuses('[call.cuToy_v2]\nguest = "written"\naliases = ["cuToy"]\n', "another signature")


class Errors(unittest.TestCase):
    CUDA_H = """typedef enum cudaError_enum {
        /** Not CUDA_ERROR_OLD = 7. */
        CUDA_ERROR_LATE = 9,
        CUDA_SUCCESS = 0
    } CUresult;"""

    def table(self, **texts):
        return emit_errors.table(texts, emit_errors.results(self.CUDA_H))

    def test_table_has_the_codes_of_the_header_in_order(self):
        text = self.table(CUDA_SUCCESS="no error", CUDA_ERROR_LATE='"late"')
        self.assertIn('{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},\n'
                      '    {CUDA_ERROR_LATE, "CUDA_ERROR_LATE", "\\"late\\""},', text)

    def test_refuses_a_code_without_a_text_and_a_text_without_a_code(self):
        with self.assertRaisesRegex(desc.DescriptionError, "CUDA_ERROR_LATE of cuda.h has no text"):
            self.table(CUDA_SUCCESS="no error")
        with self.assertRaisesRegex(desc.DescriptionError, "CUDA_ERROR_OLD: cuda.h does not have it"):
            self.table(CUDA_SUCCESS="no error", CUDA_ERROR_LATE="late", CUDA_ERROR_OLD="old")


class Opcodes(unittest.TestCase):
    def test_keeps_locked_numbers_and_appends(self):
        description = checked(TOY + '[call.cuOther]\nguest = "generated"\nreply = "result"\n')
        missing = desc.assign_opcodes(description, "cuOther 40\n")
        self.assertEqual(missing, ["cuToy_v2"])
        self.assertEqual(description.requests["cuOther"].opcode, 40)
        self.assertEqual(description.requests["cuToy_v2"].opcode, 41)

    def test_hash_follows_the_wire_form_only(self):
        base = checked(TOY).hash()
        self.assertEqual(base, checked(TOY + '[call.cuName]\nguest = "written"\n').hash())
        self.assertNotEqual(base, checked(TOY.replace('"none"', '"result"')).hash())

    def test_hash_follows_fields_that_come_with_an_error(self):
        text = ('[call.cuOther]\nguest = "written"\nsends = ["Ask"]\n'
                '[request.Ask]\ndoc = "x"\nreply = "values"\nreply_fields = { log = "bytes" }\n')
        self.assertNotEqual(checked(text).hash(), checked(text + "reply_on_error = true\n").hash())


class Output(unittest.TestCase):
    def test_per_thread_entry_calls_the_same_body_on_the_other_default_stream(self):
        description = checked(TOY)
        text = emit_guest.entries(description, toolkit.parse([HEADER]), "toy")
        self.assertIn('__asm__("cuToy_v2_ptsz")', text)
        self.assertIn("calls::cuToy_v2(bytes, hStream, DefaultStream::kPerThread)", text)
        self.assertIn("calls::cuToy_v2(bytes, hStream, DefaultStream::kLegacy)", text)

    def test_a_range_is_checked_on_both_sides_without_wrapping(self):
        description = checked(FILL)
        symbols = toolkit.parse([HEADER])
        self.assertIn("CheckDeviceRange(context, at, Saturating(Saturating(N)*4).value(), 4)",
                      emit_guest.entries(description, symbols, "toy"))
        self.assertIn("CheckRange(request.at, Saturating(Saturating(request.N)*4).value())",
                      emit_host.dispatch(description, symbols))

    def test_a_null_output_is_the_error_that_the_description_says(self):
        text = emit_guest.entries(checked(TIME), toolkit.parse([HEADER]), "toy")
        self.assertIn("if (millis == nullptr) return CUDA_ERROR_INVALID_HANDLE;", text)

    def test_every_export_is_supported_or_named_as_not(self):
        text = emit_guest.unsupported(checked(TOY), toolkit.parse([HEADER]))
        for name in ("cuToy", "cuName", "cuOther"):
            self.assertIn(f'__asm__("{name}")', text)
        self.assertNotIn('__asm__("cuToy_v2")', text)

    def test_dispatcher_requires_a_waiting_caller_where_there_is_a_reply(self):
        waits = '[call.cuOther]\nguest = "generated"\nreply = "result"\n'
        self.assertIn("|| !waits", emit_host.dispatch(checked(waits), toolkit.parse([HEADER])))
        self.assertNotIn("|| !waits", emit_host.dispatch(checked(TOY), toolkit.parse([HEADER])))

    def test_wire_struct_has_a_member_a_field(self):
        text = emit_wire.requests(checked(TOY))
        self.assertIn("struct cuToy_v2Request", text)
        self.assertIn("uint64_t hStream = 0;", text)


if __name__ == "__main__":
    unittest.main()
