"""What plots.py reads from its files; the pictures themselves need matplotlib."""

import json
import unittest

import fleet_plots
import plots

ROWS = [
    {"kernel": "gemm", "name": "o", "tokens": 1, "share": 0.9, "limit_us": 1},
    {"kernel": "gate_up", "name": "gate+up", "tokens": 1, "share": 0.7, "limit_us": 1},
    {"kernel": "gemm", "name": "o", "tokens": 8, "share": 0.6, "limit_us": 1},
    {"kernel": "sampler", "name": "greedy", "tokens": 32, "share": 0.5, "limit_us": 1},
    {"kernel": "forward", "name": "decode 8 at 192", "tokens": 8, "share": 0.5, "limit_us": 1000,
     "tokens_per_second": 4000},
    {"kernel": "forward", "name": "decode 1 at 192", "tokens": 1, "share": 0.4, "limit_us": 500,
     "tokens_per_second": 800},
    {"kernel": "forward", "name": "prefill 512", "tokens": 512, "share": 0.4, "limit_us": 500,
     "tokens_per_second": 900},
]


def line(**changes):
    run = {"label": "a", "c": 8, "out_tok_s": 1, "ttft_p50": 2, "ttft_p99": 3, "itl_p50": 4, "itl_p99": 5}
    return json.dumps({**run, **changes})


class PlotsTest(unittest.TestCase):

    def test_a_curve_for_each_matrix_and_a_bar_for_all_else(self):
        run = {"rows": ROWS}
        self.assertEqual(plots.matrix_curves(run), {"o": [(1, 0.9), (8, 0.6)], "gate+up": [(1, 0.7)]})
        self.assertEqual([label for label, _ in plots.other_shares(run)],
                         ["sampler: greedy", "forward: decode 8 at 192", "forward: decode 1 at 192",
                          "forward: prefill 512"])

    def test_decoding_by_batch_beside_its_limit(self):
        self.assertEqual(plots.decode_points({"rows": ROWS}), [(1, 800, 2000.0), (8, 4000, 8000.0)])

    def test_runs_of_one_load_become_their_median(self):
        loads = plots.read_loads([line(c=32, out_tok_s=9), line(out_tok_s=5), "", line(out_tok_s=7),
                                  line(out_tok_s=1), line(label="b", rate=1.5)])
        self.assertEqual(loads["a", "out_tok_s"], [(8, 5), (32, 9)])
        self.assertEqual(loads["b", "ttft_p50"], [(1.5, 2)])

    def test_a_run_without_answers_has_no_latency(self):
        loads = plots.read_loads([line(ttft_p50=None), line(c=16)])
        self.assertEqual(loads["a", "ttft_p50"], [(16, 2)])
        self.assertEqual(loads["a", "ttft_p99"], [(8, 3), (16, 3)])

    def test_a_curve_for_each_policy_over_the_rate(self):
        def run(policy, value):
            return json.dumps({"policy": policy, **{field: value for field, *_ in fleet_plots.PANELS}})

        curves = fleet_plots.curves_of([(50, [run("a", 1), run("b", 2)]), (100, [run("a", 3), run("b", 4)])])
        self.assertEqual(list(curves), ["a", "b"])
        self.assertEqual(curves["b"]["hit_rate"], [(50, 2), (100, 4)])

    def test_another_file_is_refused_by_line(self):
        for wrong in ("{}", "nonsense", '{"c": 1}'):
            with self.assertRaisesRegex(ValueError, "line 2 "):
                plots.read_loads([line(), wrong])


if __name__ == "__main__":
    unittest.main()
