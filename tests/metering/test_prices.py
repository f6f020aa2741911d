"""Prices: the package's table, a user's over it, and what has none."""

from __future__ import annotations

import json

import pytest

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.metering import prices
from pytest_proteus.metering.prices import builtin, over, prices_of, read
from pytest_proteus.metering.store import NAME, Store
from pytest_proteus.metering.totals import usage_of
from pytest_proteus.metering.usage import Usage
from pytest_proteus.sweep.progress import Watched, line

COUNTS = {"input": 1_000_000, "output": 100_000, "cache_read": 2_000_000, "cache_write": None, "reasoning": None}
TABLE = {"date": "2026-11-30", "models": {"mine": {"input": 1, "output": 10, "cache_read": 0.5}}}


def written(tmp_path, value):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(value))
    return path


def test_the_packages_own_table_is_in_the_form_that_users_write():
    assert read(prices.BUILTIN).models == builtin().models
    assert len(builtin().models) > 20


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("gpt-5.4-2026-03-05", "gpt-5.4"),
        ("gpt-5.4-turbo", ""),
        ("", ""),
    ],
)
def test_a_model_is_found_under_the_names_that_providers_give_it(name, found):
    assert builtin().of(name) == found


def test_a_cost_is_the_sum_of_its_kinds_in_dollars(tmp_path):
    assert read(written(tmp_path, TABLE)).cost("mine", COUNTS) == pytest.approx(1.0 + 1.0 + 1.0)


def test_what_has_no_price_has_no_cost(tmp_path):
    table = read(written(tmp_path, TABLE))
    assert table.cost("another", COUNTS) is None
    assert table.cost("mine", {**COUNTS, "cache_write": 5}) is None
    assert table.cost("mine", {**COUNTS, "output": None}) is None


def test_long_prompts_have_their_own_prices(tmp_path):
    longer = {"mine": {"input": 1, "output": 10, "cache_read": 0.5, "above": {"tokens": 200_000, "input": 2}}}
    table = read(written(tmp_path, {**TABLE, "models": longer}))
    assert table.cost("mine", COUNTS) == pytest.approx(2.0 + 1.0 + 1.0)
    assert table.cost("mine", COUNTS, 200_000) == pytest.approx(3.0)


def test_a_users_table_goes_before_the_packages(tmp_path):
    own = read(written(tmp_path, {"date": "2027-01-01", "models": {"gpt-5.4": {"input": 9, "output": 9}}}))
    table = over(builtin(), own)
    assert table.cost("gpt-5.4", {**COUNTS, "cache_read": 0}) == pytest.approx(9.9)
    assert (table.sources["gpt-5.4"], table.sources["gpt-5"]) == ("own.json 2027-01-01", "pytest-proteus 2026-11-30")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "write"),
        ({"models": {}}, '"date"'),
        ({"date": "today", "models": {}}, '"date"'),
        ({"date": "2026-11-30", "models": {"m": 3}}, "m: not an object"),
        ({"date": "2026-11-30", "models": {"m": {"input": 3}}}, '"output" are needed'),
        ({"date": "2026-11-30", "models": {"m": {"input": "3", "output": 1}}}, "'3' is no price"),
        ({"date": "2026-11-30", "models": {"m": {"input": -1, "output": 1}}}, "-1 is no price"),
        ({"date": "2026-11-30", "models": {"m": {"input": 1, "output": 1, "cached": 1}}}, "'cached' is none of"),
        ({"date": "2026-11-30", "models": {"m": {"input": 1, "output": 1, "above": {}}}}, 'needs "tokens"'),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_sentence(tmp_path, value, said):
    with pytest.raises(ConfigurationError, match=r"own\.json") as error:
        read(written(tmp_path, value))
    assert said in str(error.value)


def stored(tmp_path, *rows: tuple[str, int, int]) -> None:
    """A store with one run that made these calls: model, input, output."""
    store = Store(tmp_path / NAME)
    span = store.open_span("t", run_id="r1", model="asked")
    for number, (model, given, said) in enumerate(rows):
        ident = str(number)
        row = {
            "id": ident,
            "span": span,
            "task_id": "t",
            "provider": "anthropic",
            "model": "asked",
            "began": 1.0,
            "upstream": "u",
        }
        store.begin(row).result()
        told = {"request_id": "", "status": 200, "state": "complete", "first_byte": None, "ended": 2.0}
        store.settle(ident, Usage(given, said, model=model), told).result()
    store.close_span(span, "complete")
    store.close()


def test_a_run_costs_what_each_of_its_calls_costs(tmp_path):
    prices.keep(written(tmp_path, TABLE), tmp_path)
    stored(tmp_path, ("mine", 1_000_000, 0), ("mine", 0, 100_000), ("gpt-5.4", 100_000, 0), ("gpt-5.4", 300_000, 0))
    usage = usage_of(tmp_path)["r1"]
    assert usage.cost_usd == pytest.approx(1 + 1 + 0.25 + 1.5), "the last one is long"
    assert usage.price_source == "own.json 2026-11-30, pytest-proteus 2026-11-30"


def test_one_call_without_a_price_leaves_the_run_without_a_cost_and_says_of_which_model(tmp_path):
    stored(tmp_path, ("gpt-5.4", 10, 10), ("house-model", 10, 10))
    usage = usage_of(tmp_path)["r1"]
    assert (usage.total_tokens, usage.cost_usd, usage.price_source) == (40, None, None)
    assert usage.discrepancy["unpriced_models"] == ["house-model"]


def test_a_folder_without_a_users_table_has_the_packages(tmp_path):
    assert prices_of(tmp_path) is builtin()


def test_a_line_of_progress_has_the_calls_and_tokens_so_far(tmp_path):
    watched = Watched("demo", tmp_path, ["r1"], 2)
    assert "tokens" not in line(watched, 10.0, 5.0)
    stored(tmp_path, ("gpt-5.4", 1000, 234), ("gpt-5.4", 1, 1))
    assert line(watched, 10.0, 5.0).endswith(" episodes, 1,236 tokens in 2 calls, 5 s")
