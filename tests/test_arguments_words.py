"""Sentences that several rooms write the same way."""

from nobsp.arguments import count, join_names, number_outputs, percent, suggest


def test_many_names_are_cut_short():
    assert join_names(["a", "b", "c"], most=2) == "'a', 'b' and 1 more"


def test_one_thing_is_not_several():
    assert (count(1, "row"), count(1200, "row")) == ("1 row", "1,200 rows")


def test_outputs_without_names_are_numbered_where_there_are_several():
    assert (number_outputs(1), number_outputs(2)) == (("output",), ("output 0", "output 1"))


def test_shares_have_a_decimal_where_it_matters():
    shares = {0.123: "12%", 0.0432: "4.3%", 0.9987: "99.9%", -0.02: "−2.0%", 0.0002: "<0.1%"}
    assert [percent(share) for share in shares] == list(shares.values())


def test_close_names_are_suggested_and_else_all_are_listed():
    assert suggest("agee", ["age", "income"]) == "did you mean 'age'?"
    assert suggest("x", ["age", "income"]) == "there are 'age', 'income'."
