"""What tokens cost: a dated table of list prices, and a file of the user's over it.

A model that is in neither has no price, and what it used has no cost: none is guessed. ``prices.json`` has the form of
the user's file: ``date`` (``YYYY-MM-DD``) and ``models``, name → US dollars for a million tokens of each kind
(``input``, ``output``, ``cache_read``, ``cache_write``), and ``above`` with the prices of requests whose prompt has
more than ``tokens`` of them. Prices of batches, of other regions and of caches that live longer are not in it.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_proteus.core.errors import ConfigurationError
from pytest_proteus.core.records import write_json_atomic

BUILTIN = Path(__file__).with_name("prices.json")

#: Name of the user's prices in a sweep's folder.
NAME = "prices.json"

#: Kinds of tokens that have a price; reasoning is part of the output.
PRICED = ("input", "output", "cache_read", "cache_write")

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True)
class Prices:
    """A table of prices.

    Args:
        models: name of a model → its prices, as in the file.
        sources: name of a model → where its prices are from.
    """

    models: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, str]

    def of(self, model: str) -> str:
        """The name under which a model is in the table; empty when it is not.

        What providers and agents put before and after a model's name is left out, and dots are hyphens to Anthropic.
        """
        name = model.rpartition("/")[2]
        undated = _DATED.sub("", name)
        for found in (model, name, undated, undated.replace(".", "-") if undated.startswith("claude") else ""):
            if found in self.models:
                return found
        return ""

    def cost(self, model: str, counts: Mapping[str, int | None], longest: int | None = None) -> float | None:
        """US dollars; None where a price that is needed is not known, or a count without which there is none.

        Args:
            model: the model's name.
            counts: kind → tokens.
            longest: tokens of the prompt of the one request that this is; None for what the counts say.
        """
        name = self.of(model)
        if not name or counts["input"] is None or counts["output"] is None:
            return None
        if longest is None:
            longest = sum(counts[kind] or 0 for kind in ("input", "cache_read", "cache_write"))
        prices = self.models[name]
        above = prices.get("above")
        if above and longest > above["tokens"]:
            prices = {**prices, **above}
        parts = []
        for kind in PRICED:
            if counts[kind]:
                if prices.get(kind) is None:
                    return None
                parts.append((counts[kind] or 0) * prices[kind] / 1e6)
        return math.fsum(parts)

    @property
    def limits(self) -> list[int]:
        """Lengths of prompts beyond which some model has other prices."""
        return sorted({model["above"]["tokens"] for model in self.models.values() if model.get("above")})


@functools.lru_cache(maxsize=1)
def builtin() -> Prices:
    """The table of this package."""
    return _table(json.loads(BUILTIN.read_text(encoding="utf-8")), "pytest-proteus")


def prices_of(out: Path) -> Prices:
    """The prices that hold for a sweep's folder: the package's, under those that the folder keeps of the user's.

    Raises:
        ConfigurationError: these cannot be read.
    """
    path = Path(out) / NAME
    return over(builtin(), read(path)) if path.exists() else builtin()


def keep(path: Path, out: Path) -> None:
    """Keep a user's table in a sweep's folder, where everything that reads the folder finds it.

    Raises:
        ConfigurationError: as ``read``.
    """
    read(path)
    value = json.loads(Path(path).read_text(encoding="utf-8"))
    write_json_atomic(Path(out) / NAME, {"source": Path(path).name, **value})


def over(below: Prices, above: Prices) -> Prices:
    """One table over another, model by model."""
    return Prices({**below.models, **above.models}, {**below.sources, **above.sources})


def read(path: Path) -> Prices:
    """A user's table.

    Raises:
        ConfigurationError: there is none, or it is not in the form; says what is wrong.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the prices {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigurationError(f"the prices {path} are no JSON: {error}") from error
    problem = _problem(value)
    if problem:
        raise ConfigurationError(f"the prices {path}: {problem}")
    return _table(value, str(value.get("source") or Path(path).name))


def _table(value: Mapping[str, Any], source: str) -> Prices:
    told = f"{source} {value['date']}"
    return Prices(value["models"], dict.fromkeys(value["models"], told))


def _problem(value: Any) -> str:
    """What is wrong with a table; empty when nothing is."""
    if not isinstance(value, dict) or not isinstance(value.get("models"), dict):
        return 'write {"date": "2026-11-30", "models": {"NAME": {"input": 3, "output": 15}}}'
    if not isinstance(value.get("date"), str) or not _DATE.fullmatch(value["date"]):
        return '"date" says since when they hold, such as "2026-11-30"'
    for name, prices in value["models"].items():
        above = prices.get("above", {"tokens": 1}) if isinstance(prices, dict) else None
        if not isinstance(prices, dict) or not isinstance(above, dict):
            return f"{name}: not an object of prices"
        if not {"input", "output"} <= set(prices):
            return f'{name}: "input" and "output" are needed'
        known, limit = {*PRICED, "above"}, above.get("tokens")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            return f'{name}: "above" needs "tokens", a number from 1 on'
        for kind, price in [*prices.items(), *above.items()]:
            if kind not in known | {"tokens"}:
                return f"{name}: {kind!r} is none of {', '.join(PRICED)}, above"
            if kind not in ("above", "tokens") and not _is_price(price):
                return f"{name}: {kind}: {price!r} is no price; write US dollars for a million tokens"
    return ""


def _is_price(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
