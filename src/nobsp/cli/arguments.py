"""What can be asked on the command line, and the help that says so."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nobsp import __version__
from nobsp.cli.console import Misuse, close_to

_EXIT_CODES = """\
exit codes:
  0  done                                       130  interrupted (nothing half-written is left)
  1  it could not be done; stderr says why      141  whoever was to read stdout had gone
  2  asked wrongly; nothing was run             143  ended from outside
"""

_EPILOG = (
    """\
examples:
  nobsp demo --open
  nobsp explain --model house.pt2 --data houses.csv --target price --out explained
  nobsp cam --model shop.models:resnet --weights resnet.safetensors --images photos --calibrate more --out maps
  nobsp audit --model digits.pt2 --images scans --size 28 --channels 1 --out audit

"""
    + _EXIT_CODES
)


class _Parser(argparse.ArgumentParser):
    """Complains in one line, and notices when nobody reads its help."""

    def print_help(self, file: Any = None) -> None:
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise Misuse(f"{message} (see {self.prog} --help).")


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The asked command with its options; help where nothing was asked."""
    parser, commands = _parser()
    if not argv:
        parser.print_help()
        raise SystemExit(0)
    if not argv[0].startswith("-") and argv[0] not in commands:
        raise Misuse(f"there is no command {argv[0]!r}; {close_to(argv[0], list(commands))}")
    return parser.parse_args(argv)


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = _Parser(
        prog="nobsp",
        description="The functions a trained network has learned: a network goes in, the functions come out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"nobsp {__version__}")
    asked = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands: dict[str, argparse.ArgumentParser] = {}

    def command(name: str, summary: str, description: str) -> argparse.ArgumentParser:
        made = asked.add_parser(
            name,
            help=summary,
            description=description,
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(run=_later(name))
        commands[name] = made
        return made

    _explain(command("explain", "explain a network on a table", _EXPLAIN))
    _cam(command("cam", "show where a network sees evidence in images", _CAM))
    _audit(command("audit", "find likely errors, mislabelled rows and odd ones out", _AUDIT))
    _demo(command("demo", "see it at work on data that comes along", _DEMO))
    _bench(command("bench", "run the benchmarks of a checkout", _BENCH))
    _manners(command("version", "say which versions are installed", "Says which versions are installed."), out=False)
    return parser, commands


def _later(name: str) -> Callable[..., Any]:
    """The command's own module is loaded when it is run: `nobsp version` needs no torch."""

    def run(options: argparse.Namespace, console: Any) -> Any:
        return importlib.import_module(f"nobsp.cli.{name}").run(options, console)

    return run


# ---------------------------------------------------------------------- what several commands take


def _manners(parser: argparse.ArgumentParser, *, out: bool = True) -> None:
    group = parser.add_argument_group("how it speaks")
    if out:
        group.add_argument("--force", action="store_true", help="replace results that are there already")
    group.add_argument("--quiet", action="store_true", help="no progress and no summary; errors only")
    group.add_argument("--json", action="store_true", help="the summary as one JSON object on stdout")
    group.add_argument("--debug", action="store_true", help="show where an error came from")


def _model(parser: argparse.ArgumentParser, *, required: bool = True) -> Any:
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model",
        required=required,
        metavar="FILE|FACTORY",
        help="a torch.export file (.pt2), a scikit-learn pipeline in a skops file, or a function "
        "that makes the model: package.module:factory or file.py:factory",
    )
    group.add_argument("--weights", type=Path, metavar="FILE", help="weights for what the factory makes (.safetensors)")
    group.add_argument(
        "--trust-pickle",
        action="store_true",
        help="read the model even if it is a pickle, which can run any code its author put there",
    )
    group.add_argument("--head", metavar="NAME", help="name of the last linear layer, where it is not found by itself")
    group.add_argument("--output-names", nargs="+", metavar="NAME", help="names of the outputs or classes")
    group.add_argument("--device", metavar="DEVICE", help="where to run the model, such as cuda or cpu")
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads torch may use; default: 1 for tables, where more are slower, and torch's own for images",
    )
    return group


def _table(parser: argparse.ArgumentParser, *, required: bool) -> Any:
    group = parser.add_argument_group("the table")
    group.add_argument(
        "--data", type=Path, required=required, metavar="FILE", help="rows to look at: CSV, Parquet or Arrow"
    )
    group.add_argument("--target", metavar="COLUMN", help="column with the true values; it is not given to the model")
    group.add_argument(
        "--features", nargs="+", metavar="COLUMN", help="columns the model takes, in its order; default: all others"
    )
    group.add_argument(
        "--groups",
        nargs="+",
        metavar="NAME=COLUMN,…",
        help='columns that are one feature, such as city=oslo,rome; or a JSON file, {"city": ["oslo", "rome"]}',
    )
    return group


def _images(parser: argparse.ArgumentParser, *, required: bool) -> Any:
    group = parser.add_argument_group("the images")
    group.add_argument(
        "--images",
        type=Path,
        required=required,
        metavar="FOLDER",
        help="images to look at; folders in it are taken for their classes",
    )
    group.add_argument(
        "--size", type=int, nargs="+", metavar="PIXELS", help="side, or height and width, to bring them to"
    )
    group.add_argument(
        "--fit",
        choices=("crop", "squash"),
        default="crop",
        help="bring the shorter side to size and cut the rest (default), or squash",
    )
    group.add_argument("--channels", type=int, choices=(1, 3), default=3, help="1 for grey, 3 for colour (default)")
    group.add_argument(
        "--normalise",
        metavar="HOW",
        help="imagenet (default for colour), half (-1 to 1), or none (0 to 1, default for grey); or in numbers with "
        "--mean and --std",
    )
    group.add_argument(
        "--mean", type=float, nargs="+", metavar="M", help="what to subtract, one number or one a channel"
    )
    group.add_argument("--std", type=float, nargs="+", metavar="S", help="what to divide by, likewise")
    group.add_argument("--limit", type=int, metavar="N", help="look at the first N images only")
    return group


# ---------------------------------------------------------------------- the commands

_EXPLAIN = """\
Explains a network on a table: what each feature, and each interaction that matters, adds to every prediction.

Writes into the folder --out:
  report.html            everything to look at, with what-if sliders; needs no network and no Python
  contributions.parquet  base, every term, residual and prediction, per row and output
  curves.csv             every feature's average effect with its band
  explainer.nobsp        the calibration without its rows, for nobsp.NObSP.load
"""


def _explain(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.set_defaults(threads=1)
    table = _table(parser, required=True)
    table.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="rows to calibrate on, best fresh ones; default: those of --data"
    )
    group = parser.add_argument_group("the explanation")
    group.add_argument(
        "--interactions",
        nargs="+",
        default=["auto"],
        metavar="WHICH",
        help="auto (default), a number of pairs, 0 for none, or pairs such as age:income",
    )
    group.add_argument(
        "--background", type=int, default=32, metavar="N", help="rows that effects are averaged over; default: 32"
    )
    group.add_argument(
        "--baseline",
        choices=("mean", "zero", "median", "mode"),
        default="mean",
        help="the point that changes are measured from; default: mean",
    )
    group.add_argument(
        "--reference",
        choices=("terms", "complement"),
        default="terms",
        help="all terms at once (default), or the paper's Algorithm 1",
    )
    group.add_argument(
        "--ridge", default="auto", metavar="STRENGTH", help="auto, chosen on held-out rows (default); or a number, 1e-4"
    )
    group.add_argument("--batch-size", type=int, default=4096, metavar="ROWS", help="most rows in one forward call")
    _result(parser, "where the four files go")
    _manners(parser)


_CAM = """\
Shows where in images a network sees evidence for a class, and against it.

Writes into the folder --out:
  report.html      images with their maps
  maps/            every image with its map laid over it
  predictions.csv  what was predicted, how surely, and what the map leaves unexplained
  explainer.nobsp  the calibration, for nobsp.NObSPCam.load
"""


def _cam(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    images = _images(parser, required=True)
    images.add_argument(
        "--calibrate",
        type=Path,
        metavar="FOLDER",
        help="images whose mean is the reference, best other ones; default: those of --images",
    )
    group = parser.add_argument_group("the maps")
    group.add_argument("--class", dest="target", metavar="CLASS", help="class to explain; default: the predicted one")
    group.add_argument(
        "--against", metavar="CLASS", help="compare with a class, runner-up, others or mean; default: the average image"
    )
    group.add_argument(
        "--map",
        dest="kind",
        choices=("contrast", "account", "positive", "negative", "signed"),
        default="contrast",
        help="what pictures and report show: the account against the other classes (default), the account of the "
        "logit, or the paper's maps of channels for, against, and both",
    )
    group.add_argument("--layer", metavar="NAME", help="layer whose map to show; default: the last one that counts")
    group.add_argument(
        "--coefficients",
        choices=("head", "calibrated"),
        default="head",
        help="the head's own weights (default), or found by the paper's Algorithm 1",
    )
    group.add_argument(
        "--link",
        choices=("softmax", "sigmoid"),
        help="sigmoid where images may have several classes; default: as found",
    )
    group.add_argument("--batch-size", type=int, default=32, metavar="IMAGES", help="most images in one forward call")
    _result(parser, "where the results go")
    _manners(parser)


_AUDIT = """\
Finds rows, or images, that deserve a second look: likely errors of the model, likely wrong labels, cases on the
boundary, and odd ones out, by comparing the evidence behind each prediction with that behind its neighbours'.

Give a table with --data and --target, or --images with one folder a class.

Writes into the folder --out:
  audit.csv    every row with its findings, most suspicious first
  report.html  the cases with their neighbours
"""


def _audit(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    table = _table(parser, required=False)
    _images(parser, required=False)
    table.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE|FOLDER",
        help="rows (with their --target) or images to compare with; default: the others of those looked at",
    )
    group = parser.add_argument_group("the audit")
    group.add_argument(
        "--classes",
        nargs="+",
        metavar="LABEL",
        help="the label of every class in the model's order, where labels are neither numbers from 0 nor output names",
    )
    group.add_argument("--neighbours", type=int, default=8, metavar="K", help="how many to compare with; default: 8")
    group.add_argument("--batch-size", type=int, metavar="ROWS", help="most rows or images in one forward call")
    _result(parser, "where the results go")
    _manners(parser)


_DEMO = """\
Trains small networks on data that comes along (known functions, breast cancer cells, handwritten digits), explains and
audits them, and writes a page for each. Takes about a minute.
"""


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("nobsp-demo"), metavar="FOLDER", help="where the pages go; default: nobsp-demo"
    )
    parser.add_argument("--open", action="store_true", help="open the first page in a browser")
    _manners(parser)


_BENCH = """\
Runs a benchmark of a checkout of the project, from its folder: the tables in benchmarks/results.
Everything after the name is handed on; `nobsp bench` alone lists what there is.
"""


def _bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", metavar="TABLE", help="which one")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and smaller data")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _result(parser: argparse.ArgumentParser, what: str) -> None:
    group = parser.add_argument_group("the results")
    group.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=what)
    group.add_argument("--title", metavar="TEXT", help="heading of the report")
    group.add_argument("--no-report", dest="report", action="store_false", help="leave the report out")
