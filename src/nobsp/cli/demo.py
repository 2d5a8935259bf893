"""`nobsp demo`: the main job on data that comes along."""

from __future__ import annotations

import time
import webbrowser
from argparse import Namespace

from nobsp.cli.console import Console
from nobsp.cli.explain import require_report
from nobsp.cli.folder import require_free, written


def run(options: Namespace, console: Console) -> None:
    """Runs the demo, says what it found in five lines and where the pages are."""
    from nobsp import demo

    require_free(options.out, demo.PAGES, force=options.force)
    require_report()
    begun = time.monotonic()
    with written(options.out) as folder:
        findings = demo.run(folder, say=console.step)
    first = (options.out / demo.PAGES[0]).resolve()
    seconds = time.monotonic() - begun
    console.results(
        [*findings.lines, f"Done in {seconds:.0f} s. Open {first}"],
        {**findings.numbers, "seconds": seconds, "pages": [str(options.out / name) for name in demo.PAGES]},
    )
    if options.open:
        webbrowser.open(first.as_uri())
