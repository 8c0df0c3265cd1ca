"""Which clusters an oracle runs: RANKS:CHUNK, the tensor-parallel ranks and --chunked-prefill-size."""

import itertools

ALL = [f"{tp}:{chunk}" for tp, chunk in itertools.product((1, 2, 3), (16, 512))]


def setup(text):
    tp, chunk = text.split(":")
    return int(tp), int(chunk)


def add_setups(parser):
    """options.setups: pairs of ranks and chunk size. argparse reports what is not one."""
    parser.add_argument("--setups", type=setup, nargs="+", default=[setup(each) for each in ALL],
                        metavar="RANKS:CHUNK", help=f"default: {' '.join(ALL)}")
