"""All channels from one factorisation, against Algorithm 1 run channel by channel.

The coefficients are the same; the table says how far apart they are. Four ways are timed, in float64:

    as printed      Algorithm 1 of the paper on the raw rows, its matrix A formed by a Cholesky solve
    A not formed    the same, products taken from the right so that A (channels × rows) is never needed
    Gram shared     the same again, with the product of all channels taken out of the loop: Algorithm 1 in the
                    hands of a careful programmer
    channel form    `Moments.update` on the raw rows and `channel_coefficients`

The first three are timed on a sample of channels and scaled to all of them, as every channel costs the same.

The floor is what the channel form cannot do without: the Gram product, one Cholesky factorisation and one
inverse, by bare calls of torch. Two Gram products are told apart: that of the channels alone, and that of the
rows [channels | outputs], which is what moments hold; with more outputs than channels most of it is outputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.report import Column, Race, Report, Table, options, progress, publish, race, seconds
from benchmarks.speed.ratios import Ratio, raced
from nobsp.projection import Moments, Ridge, channel_coefficients

ROWS, OUTPUTS, RIDGE, SEED = 2000, 200, 1e-4, 0
# Channels in all, and how many of them Algorithm 1 is timed on.
SIZES = {128: 32, 512: 16, 1280: 8}
QUICK_SIZES = {128: 8, 512: 4}


def pooled_rows(
    channels: int, *, rows: int = ROWS, outputs: int = OUTPUTS
) -> tuple[Tensor, Tensor]:
    """Centred channels of unit scale that share a few common directions, and a linear head's outputs."""
    generator = torch.Generator().manual_seed(SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    common = normal(rows, 16) @ normal(16, channels) / 4
    representation = (common + normal(rows, channels)) / 2**0.5
    representation -= representation.mean(0)
    return representation, representation @ normal(channels, outputs) / channels**0.5


# ---------------------------------------------------------------------- Algorithm 1, channel by channel


def as_printed(representation: Tensor, outputs: Tensor, channel: int) -> Tensor:
    """Coefficients of one channel against all others, shape (outputs,), step by step as in the paper."""
    target = representation[:, channel : channel + 1]
    reference = _without(representation, channel, dim=1)
    solver = torch.cholesky_solve(reference.T, _factor(reference.T @ reference))
    outputs_left = outputs - reference @ (solver @ outputs)
    target_left = target - reference @ (solver @ target)
    return _last_step(target_left, outputs_left)


def not_formed(representation: Tensor, outputs: Tensor, channel: int) -> Tensor:
    """The same without the matrix A of the paper's first step."""
    reference = _without(representation, channel, dim=1)
    return _from_gram(representation, reference, reference.T @ reference, outputs, channel)


def gram_shared(representation: Tensor, outputs: Tensor, channel: int, gram: Tensor) -> Tensor:
    """The same where the Gram matrix of all channels is given."""
    reference = _without(representation, channel, dim=1)
    own = _without(_without(gram, channel, dim=0), channel, dim=1)
    return _from_gram(representation, reference, own, outputs, channel)


def _from_gram(
    representation: Tensor, reference: Tensor, gram: Tensor, outputs: Tensor, channel: int
) -> Tensor:
    both = torch.cat([representation[:, channel : channel + 1], outputs], dim=1)
    left = both - reference @ torch.cholesky_solve(reference.T @ both, _factor(gram))
    return _last_step(left[:, :1], left[:, 1:])


def _last_step(target_left: Tensor, outputs_left: Tensor) -> Tensor:
    left = target_left.flatten()
    return (left @ outputs_left) / (left @ left + RIDGE)


def _factor(gram: Tensor) -> Tensor:
    """Cholesky factor of G + λI; `gram` is used up."""
    gram.diagonal().add_(RIDGE)
    factor: Tensor = torch.linalg.cholesky(gram)
    return factor


def _without(matrix: Tensor, index: int, *, dim: int) -> Tensor:
    before = matrix.narrow(dim, 0, index)
    after = matrix.narrow(dim, index + 1, matrix.shape[dim] - index - 1)
    return torch.cat([before, after], dim=dim)


# ---------------------------------------------------------------------- one factorisation


def gathered(representation: Tensor, outputs: Tensor) -> Moments:
    blocks = {"channels": representation.shape[1], "outputs": outputs.shape[1]}
    return Moments(blocks).update({"channels": representation, "outputs": outputs})


def solved(moments: Moments) -> Tensor:
    return channel_coefficients(moments, ridge=Ridge(RIDGE, "absolute")).coefficients


def channel_form(representation: Tensor, outputs: Tensor) -> Tensor:
    return solved(gathered(representation, outputs))


def floor(rows: Tensor, channels: int) -> Tensor:
    """Gram product of the rows, and of its channels one Cholesky factorisation and one inverse."""
    gram = rows.T @ rows
    return torch.cholesky_inverse(_factor(gram[:channels, :channels]))


# ---------------------------------------------------------------------- the benchmark


@dataclass(frozen=True)
class Result:
    """What was measured for one number of channels.

    Attributes:
        channels: How many there are.
        sampled: On how many of them Algorithm 1 was timed.
        algorithms: Each form of Algorithm 1, scaled to all channels, raced against the channel form.
        difference: Largest between the coefficients of both, as a share of the largest coefficient.
        solve: The channel form given moments, against the floor.
        whole: The channel form from raw rows, against the floor.
        whole_with_outputs: The same, against the floor whose Gram product has the outputs in it.
    """

    channels: int
    sampled: int
    algorithms: tuple[Race, Race, Race]
    difference: float
    solve: Race
    whole: Race
    whole_with_outputs: Race

    @property
    def form(self) -> float:
        return statistics.median((*self.whole.first, *self.whole_with_outputs.first))


def measure(channels: int, sampled: int, *, repeats: int) -> Result:
    representation, outputs = pooled_rows(channels)
    rows = torch.cat([representation, outputs], dim=1)
    moments = gathered(representation, outputs)
    picks = [round(i * (channels - 1) / (sampled - 1)) for i in range(sampled)]

    def whole() -> Tensor:
        return channel_form(representation, outputs)

    def bare() -> Tensor:
        return floor(representation, channels)

    progress(f"{channels} channels: Algorithm 1 on {sampled} of them")
    algorithms = channel_by_channel(representation, outputs, picks)
    expected = torch.stack([as_printed(representation, outputs, k) for k in picks])
    progress(f"{channels} channels: the channel form")
    return Result(
        channels=channels,
        sampled=sampled,
        algorithms=algorithms,
        difference=float((whole()[picks] - expected).abs().max() / expected.abs().max()),
        solve=race(lambda: solved(moments), bare, repeats=repeats),
        whole=race(whole, bare, repeats=repeats),
        whole_with_outputs=race(whole, lambda: floor(rows, channels), repeats=repeats),
    )


def channel_by_channel(
    representation: Tensor, outputs: Tensor, picks: Sequence[int]
) -> tuple[Race, Race, Race]:
    """Algorithm 1 in its three forms on some channels, each scaled to all, in turn with the channel form."""
    gram = representation.T @ representation

    def whole(_: int) -> Tensor:
        return channel_form(representation, outputs)

    ways: list[Callable[[int], Tensor]] = [
        lambda k: as_printed(representation, outputs, k),
        lambda k: not_formed(representation, outputs, k),
        lambda k: gram_shared(representation, outputs, k, gram),
        whole,
    ]
    for way in ways:
        way(picks[0])  # warm-up
    rounds = [[seconds(partial(way, channel)) for way in ways] for channel in picks]
    printed, unformed, shared, form = (tuple(times) for times in zip(*rounds, strict=True))
    count = representation.shape[1]
    first, second, third = (
        Race(tuple(count * t for t in taken), form) for taken in (printed, unformed, shared)
    )
    return first, second, third


def ways_table(results: list[Result]) -> Table:
    names = ("as printed", "A not formed", "Gram shared")
    return Table(
        f"Seconds to calibrate all channels: {ROWS} rows, {OUTPUTS} outputs",
        (
            Column("channels"),
            Column("timed on"),
            *(Column(name, ".3g") for name in names),
            Column("channel form", ".3g"),
            *(Column(f"{name} / form", ",.0f") for name in names),
            Column("difference", ".0e"),
        ),
        tuple(
            (
                str(r.channels),
                str(r.sampled),
                *(race.medians[0] for race in r.algorithms),
                r.form,
                *(race.ratio for race in r.algorithms),
                r.difference,
            )
            for r in results
        ),
        "The three forms of Algorithm 1 are timed on as many channels as 'timed on' says, and scaled to all "
        "channels. The channel form is timed whole, moments of the raw rows included. Ratios are medians over "
        "rounds in which every way runs once. 'difference' is the largest between the coefficients of the channel "
        "form and of Algorithm 1 as printed, on the channels timed, as a share of the largest coefficient.",
    )


def floor_table(results: list[Result]) -> Table:
    return Table(
        "The channel form against Gram product, one Cholesky factorisation and inverse timed alone",
        (
            Column("channels"),
            Column("floor, s", ".3g"),
            Column("given moments, s", ".3g"),
            Column("given moments / floor", ".2f"),
            Column("whole, s", ".3g"),
            Column("whole / floor", ".2f"),
            Column("whole / floor with outputs", ".2f"),
        ),
        tuple(
            (
                str(r.channels),
                r.solve.medians[1],
                r.solve.medians[0],
                r.solve.ratio,
                r.form,
                r.whole.ratio,
                r.whole_with_outputs.ratio,
            )
            for r in results
        ),
        f"The floor takes the Gram product of the channels only; 'with outputs' that of the rows [channels | "
        f"{OUTPUTS} outputs], which moments hold. 'whole' is from raw rows to coefficients. Ratios are medians "
        "over pairs of runs taken in turn.",
    )


def findings(results: list[Result]) -> tuple[str, ...]:
    last, few = results[-1], results[0]
    printed, unformed, shared = last.algorithms
    solve = max(r.solve.ratio for r in results)
    both = max(r.whole_with_outputs.ratio for r in results)
    return (
        f"At {last.channels} channels the channel form takes {last.form:.2f} s. Algorithm 1 as printed takes "
        f"{printed.medians[0]:,.0f} s, {printed.ratio:,.0f} times as long; without forming A "
        f"{unformed.ratio:,.0f} times, with the Gram matrix shared {shared.ratio:,.0f} times. The coefficients "
        f"differ by {last.difference:.0e} at most.",
        f"Given moments, the channel form takes at most {solve:.2f} times what Gram product, Cholesky factorisation "
        f"and inverse take alone; from raw rows at most {both:.2f} times, the outputs counted on both sides "
        "(1.5 was aimed at).",
        f"Counted against the channels' Gram product only, it takes {few.whole.ratio:.2f} times as long at "
        f"{few.channels} channels, where most columns are outputs, and {last.whole.ratio:.2f} times at "
        f"{last.channels}.",
    )


def ratios(*, quick: bool) -> list[Ratio]:
    """For the table of all speeds: the largest number of channels."""
    found = measure(512 if quick else 1280, 4 if quick else 6, repeats=3 if quick else 7)
    printed, _, shared = found.algorithms
    what = f"coefficients of {found.channels:,} channels × {OUTPUTS} classes, {ROWS:,} images"
    scaled = f"scaled from {found.sampled} channels"
    return [
        raced(what, printed.second, f"Algorithm 1 as printed, {scaled}", printed.first),
        raced(what, shared.second, f"Algorithm 1, Gram matrix shared, {scaled}", shared.first),
        raced(
            what,
            found.whole_with_outputs.first,
            "Gram product, one Cholesky factorisation, inverse",
            found.whole_with_outputs.second,
            target=1.5,
            cost=True,
        ),
    ]


def main() -> None:
    parser = options(
        "Time all channels at once against Algorithm 1 channel by channel.", threads=True
    )
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    sizes = QUICK_SIZES if chosen.quick else SIZES
    results = [measure(c, n, repeats=5 if chosen.quick else 15) for c, n in sizes.items()]
    report = Report(
        name="speed-channels",
        title="All channels from one factorisation, against Algorithm 1 channel by channel",
        tables=(ways_table(results), floor_table(results)),
        findings=findings(results),
        seeds=(SEED,),
        settings={
            "rows": ROWS,
            "outputs": OUTPUTS,
            "ridge": f"absolute {RIDGE}",
            "precision": "float64",
        },
    )
    publish(report, chosen)


if __name__ == "__main__":
    main()
