"""The account of probabilities in the page: a switch, the same numbers as Python's, and it adds up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nobsp import NObSP
from nobsp.reporting import report
from tests.tolerances import CONTRIBUTIONS, SUMS, assert_same_to_rounding

CARRIED = """([row, stop]) => {
  const account = nobsp.account(nobsp.row(row));
  return nobsp.carried(account.contributions, stop).map(part => Array.from(part));
}"""


def values(page: Any, selector: str) -> list[float]:
    return [float(one.get_attribute("data-value")) for one in page.locator(selector).all()]


def test_what_the_page_carries_over_is_what_python_carries_over(
    show: Any, classes: Any, classes_page: Any
) -> None:
    page, ex = show(classes_page, fresh=False).page, classes.explanation
    for row in (0, 7, 31):
        found = page.evaluate(CARRIED, [row, ex.predictions[row].tolist()])
        assert_same_to_rounding(
            np.array(found),
            ex.to_probability(link="softmax").values[row],
            within=CONTRIBUTIONS,
            size=1.0,
        )


@pytest.mark.parametrize("place", ["#row", "#whatif-account"])
def test_a_switch_shows_the_account_of_a_probability_and_it_adds_up(
    show: Any, classes: Any, classes_page: Any, place: str
) -> None:
    page, ex = show(classes_page, fresh=False).page, classes.explanation
    page.locator("#row-table .open").first.click()
    row = int(page.locator("#row-table tr.here").get_attribute("data-row"))
    page.fill("#from-row", str(page.locator("#row-table tr.here .open").inner_text()))
    page.click("#load-row")
    before = page.inner_text(f"{place} table.account")
    page.locator(".as-linked input").first.check()
    assert page.locator(".as-linked input").last.is_checked()
    base, _, end = values(page, f"{place} table.account tr.sum")
    rest = values(page, f"{place} table.account tr.left")[0]
    terms = values(page, f"{place} table.account tr.term")
    expected = ex.to_probability(link="softmax")
    assert_same_to_rounding(end, expected.predictions[row, 0], within=SUMS, size=1.0)
    assert_same_to_rounding(base, expected.base_values[0], within=SUMS, size=1.0)
    assert_same_to_rounding(base + sum(terms) + rest, end, within=SUMS, size=1.0)
    assert_same_to_rounding(
        max(terms, key=abs),
        max(expected.values[row, :, 0], key=abs),
        within=CONTRIBUTIONS,
        size=1.0,
    )
    assert "another path" in page.inner_text(place)
    page.locator(".as-linked input").last.uncheck()
    assert page.inner_text(f"{place} table.account") == before


def test_a_row_that_is_made_up_ends_at_the_probability_of_its_terms(
    show: Any, classes_page: Any
) -> None:
    page = show(classes_page, fresh=False).page
    page.locator(".as-linked input").first.check()
    base, end = values(page, "#whatif-account table.account tr.sum")
    assert_same_to_rounding(
        base + sum(values(page, "#whatif-account tr.term")), end, within=SUMS, size=1.0
    )
    given = page.evaluate("nobsp.probabilities(nobsp.account(nobsp.typical()).total)[0]")
    assert_same_to_rounding(end, given, within=CONTRIBUTIONS, size=1.0)


def test_where_the_output_is_no_logit_there_is_no_switch(show: Any, mixed_page: Any) -> None:
    assert not show(mixed_page, fresh=False).page.locator(".as-linked").first.is_visible()


@pytest.mark.parametrize("link", [torch.nn.Sigmoid(), "exp"])
def test_other_links_are_carried_over_too(show: Any, tmp_path: Any, link: Any) -> None:
    torch.manual_seed(0)
    body = [torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]

    class Rate(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).exp()

    model = (Rate(*body) if link == "exp" else torch.nn.Sequential(*body, link)).double()
    X = torch.randn(200, 2, dtype=torch.float64)
    ex = NObSP(model).fit(X)(X[:20])
    page = show(report(ex, tmp_path / "page.html")).page
    found = page.evaluate(CARRIED, [3, ex.predictions[3].tolist()])
    assert_same_to_rounding(
        np.array(found), ex.to_probability().values[3], within=CONTRIBUTIONS, size=1.0
    )
