"""How often verdicts are wrong: simulated comparisons of known truth, as tables in Markdown.

    python tests/simulation/error_rates.py [--runs 1000] > tables.md

The quick form of it is ``test_error_rates.py`` beside it. A family is a way in which values vary; its candidate is
worse than its baseline by a share of the margin: by all of it (a pass and a fail are then both wrong, and each may
happen with probability alpha), or by none (a fail is wrong).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from pytest_proteus.measure.families import correct
from pytest_proteus.measure.gate import compare
from pytest_proteus.measure.sequential import in_sequence, mean_in_sequence
from pytest_proteus.measure.stream import separation
from pytest_proteus.measure.summary import Observation, estimate
from pytest_proteus.sweep.gates import decide

ALPHA = 0.05
SIZES = (3, 5, 10, 20, 50)
Values = tuple["list[float]", "list[float]"]
Arms = Callable[[np.random.Generator, int], Any]


@dataclass(frozen=True)
class Family:
    """A way in which values vary.

    Args:
        name: in words.
        draw: generator, pairs and share of the margin by which the candidate is worse → baseline and candidate.
        gate: what is asked of it.
        bounds: of the values, where they have some that could be declared.
        holds: assumptions that are true of it, or so nearly that nothing comes of it.
    """

    name: str
    draw: Callable[[np.random.Generator, int, float], Values]
    gate: Mapping[str, Any]
    holds: frozenset[str]
    bounds: tuple[float, float] | None = None

    @property
    def assumptions(self) -> list[str]:
        return ["symmetric", "normal", *(["bounded"] if self.bounds else [])]

    def options(self, assume: str) -> dict[str, Any]:
        """Bounds are declared where betting is asked for, and for scores, which everyone would declare."""
        declared = {"bounds": self.bounds} if assume == "bounded" or "declared" in self.gate else {}
        return {**{k: v for k, v in self.gate.items() if k != "declared"}, "assume": assume, **declared}


def shifted(noise: Callable[[np.random.Generator, int], Any], margin: float) -> Callable[..., Values]:
    """Runs that have their seed in common and differ by a shift and by ``noise`` of mean 0."""

    def draw(source: np.random.Generator, n: int, share: float) -> Values:
        baseline = 100 + 3 * source.normal(size=n)
        return baseline.tolist(), (baseline - share * margin + noise(source, n)).tolist()

    return draw


def skewed_alike(source: np.random.Generator, n: int, share: float) -> Values:
    seeds, (first, second) = source.normal(size=n), source.lognormal(size=(2, n))
    return (seeds + first).tolist(), (seeds + second - share * 3).tolist()


def shares(source: np.random.Generator, n: int, share: float) -> Values:
    return (source.binomial(20, 0.8, n) / 20).tolist(), (source.binomial(20, 0.8 - 0.1 * share, n) / 20).tolist()


def calls(source: np.random.Generator, n: int, share: float) -> Values:
    return source.poisson(50, n).tolist(), source.poisson(50 * (1 + 0.1 * share), n).tolist()


def tokens(source: np.random.Generator, n: int, share: float) -> Values:
    baseline = np.exp(11 + 0.5 * source.normal(size=n))
    return baseline.tolist(), (baseline * 1.1**share * np.exp(0.1 * source.normal(size=n))).tolist()


def binary(source: np.random.Generator, n: int, share: float) -> Values:
    return source.binomial(1, 0.8, n).tolist(), source.binomial(1, 0.8 - 0.2 * share, n).tolist()


def collapse(noise: float) -> Callable[..., Values]:
    """One run in ten, at the margin, ends at 0."""

    def draw(source: np.random.Generator, n: int, share: float) -> Values:
        baseline = 0.8 + source.uniform(-noise, noise, n)
        candidate = (baseline + source.uniform(-noise, noise, n)) * (source.random(n) >= 0.1 * share)
        return baseline.tolist(), candidate.tolist()

    return draw


def one_sided(source: np.random.Generator, n: int) -> Any:
    return 1 - source.exponential(size=n)


UP = {"direction": "higher", "margin": 1.0}
FAMILIES = [
    Family("normal", shifted(lambda s, n: s.normal(size=n), 1), UP, frozenset({"symmetric", "normal"})),
    Family("heavy tails (t, 3 degrees)", shifted(lambda s, n: s.standard_t(3, n), 1), UP, frozenset({"symmetric"})),
    Family("both sides skewed alike", skewed_alike, {**UP, "margin": 3.0}, frozenset({"symmetric"})),
    Family(
        "share of 20 episodes",
        shares,
        {"direction": "higher", "margin": 0.1, "declared": True},
        frozenset({"symmetric", "bounded"}),
        (0, 1),
    ),
    Family(
        "calls, 10 %",
        calls,
        {"direction": "lower", "margin": 0.1, "relative": True},
        frozenset({"symmetric", "normal"}),
    ),
    Family(
        "tokens, 10 %, log scale",
        tokens,
        {"direction": "lower", "margin": 0.1, "scale": "log"},
        frozenset({"symmetric", "normal"}),
    ),
    Family(
        "solved or not",
        binary,
        {"direction": "higher", "margin": 0.2, "declared": True},
        frozenset({"bounded"}),
        (0, 1),
    ),
    Family("one-sided skew", shifted(one_sided, 1), UP, frozenset()),
    Family("rare collapse", collapse(0.0), {"direction": "higher", "margin": 0.08}, frozenset({"bounded"}), (0, 1)),
    Family(
        "rare collapse in noise",
        collapse(0.05),
        {"direction": "higher", "margin": 0.08},
        frozenset({"bounded"}),
        (0, 1),
    ),
]


#: Values whose mean is 0, or the rate 0.8: name → (draws, mean, bounds, whether what is assumed of them is true).
Draw = Callable[[np.random.Generator, int], Any]
MEANS: dict[str, tuple[Draw, float, tuple[float, float] | None, bool]] = {
    "normal": (lambda s, n: s.normal(size=n), 0.0, None, True),
    "heavy tails (t, 3 degrees)": (lambda s, n: s.standard_t(3, n), 0.0, None, False),
    "skew": (lambda s, n: s.exponential(size=n) - 1, 0.0, None, False),
    "share of 20 episodes": (lambda s, n: s.binomial(20, 0.8, n) / 20, 0.8, (0.0, 1.0), True),
    "solved or not": (lambda s, n: s.binomial(1, 0.8, n), 0.8, (0.0, 1.0), True),
}


def of_a_mean(name: str, n: int, runs: int, *, looks: bool = False, seed: int = 5) -> dict[str, float]:
    """How often a gate on a mean that lies exactly at its bound gives each verdict, at n runs or after each of them."""
    draw, mean, bounds, _ = MEANS[name]
    source, counts = np.random.default_rng([seed, n]), {"pass": 0, "fail": 0}
    for _ in range(runs):
        values = draw(source, n).tolist()
        if looks:
            seen = [Observation(value, seed=i) for i, value in enumerate(values)]
            found = mean_in_sequence(seen, mean, above=True, order=range(n), n_min=3, bounds=bounds, alpha=ALPHA)
            verdict = found.verdict
        else:
            verdict = decide("", estimate(values, bounds=bounds), "at_least", mean).verdict
        counts[verdict] = counts.get(verdict, 0) + 1
    return {verdict: count / runs for verdict, count in counts.items()}


def keyed(values: Sequence[float], name: str = "") -> dict[Any, float]:
    return {(name, i): value for i, value in enumerate(values)}


def verdicts(
    family: Family, n: int, assume: str, share: float, runs: int, seed: int = 0, **options: Any
) -> dict[str, float]:
    """How often each verdict is given, as shares of ``runs``."""
    source, counts = np.random.default_rng([seed, n, round(8 * share)]), {"pass": 0, "fail": 0, "undecided": 0}
    for _ in range(runs):
        baseline, candidate = family.draw(source, n, share)
        found = compare(keyed(baseline), keyed(candidate), alpha=ALPHA, **{**family.options(assume), **options})
        counts[found.verdict] += 1
    return {verdict: count / runs for verdict, count in counts.items()}


def most(runs: int, rate: float = ALPHA) -> float:
    """The share of runs that an event of this rate exceeds in one of a million simulations."""
    return float(stats.binom.ppf(1 - 1e-6, runs, rate)) / runs


def unpaired(
    source: np.random.Generator, sizes: tuple[int, int], spreads: tuple[float, float], skewed: bool
) -> tuple[dict[Any, float], dict[Any, float]]:
    """Two groups at the margin of 1."""
    draw = [source.lognormal(size=n) - math.exp(0.5) if skewed else source.normal(size=n) for n in sizes]
    baseline, candidate = (x * spread for x, spread in zip(draw, spreads, strict=True))
    return keyed(baseline.tolist(), "b"), keyed((candidate - 1).tolist(), "c")


def stopped(
    family: Family, n_max: int, assume: str, share: float, runs: int, seed: int = 1
) -> tuple[dict[str, float], float]:
    """How often each verdict is given in sequence, and the mean number of seeds spent."""
    source, counts, spent = np.random.default_rng([seed, n_max, round(8 * share)]), {}, 0
    for _ in range(runs):
        baseline, candidate = family.draw(source, n_max, share)
        sides = keyed(baseline), keyed(candidate)
        found = in_sequence(*sides, order=list(sides[0]), n_max=n_max, alpha=ALPHA, **family.options(assume))
        counts[found.verdict] = counts.get(found.verdict, 0) + 1
        spent += found.n
    return {verdict: counts.get(verdict, 0) / runs for verdict in ("pass", "fail", "undecided")}, spent / runs


def streams(source: np.random.Generator, runs: int, length: int, spread: float) -> list[list[str]]:
    """Runs of one policy, each a little different: ``spread`` 0 for none."""
    base, out = np.array([5.0, 3.0, 2.0, 1.0, 1.0]), []
    for _ in range(runs):
        policy = source.dirichlet(base / spread) if spread else base / base.sum()
        out.append([f"tool{i}" for i in source.choice(5, length, p=policy)])
    return out


def separations(arms: Arms, runs: int, seed: int = 2) -> tuple[float, float]:
    """How often two arms of one policy are told apart, by the p that gates and by R's."""
    source, hits, hits_of_r = np.random.default_rng(seed), 0, 0
    for i in range(runs):
        found = arms(source, i)
        hits += found.p <= ALPHA
        hits_of_r += found.p_R <= ALPHA
    return hits / runs, hits_of_r / runs


def of_streams(first: tuple[int, int, float], second: tuple[int, int, float]) -> Arms:
    """Two arms of runs of one policy: (runs, length, spread) of each."""

    def separated(source: np.random.Generator, seed: int) -> Any:
        arms = {"a": streams(source, *first), "b": streams(source, *second)}
        return separation(arms, permutations=499, seed=seed)

    return separated


def of_numbers(first: tuple[int, float], second: tuple[int, float]) -> Arms:
    """Two arms of normal numbers of one mean, squared differences being their distances: (runs, deviation) of each."""

    def separated(source: np.random.Generator, seed: int) -> Any:
        x = np.concatenate([source.normal(0, deviation, n) for n, deviation in (first, second)])
        labels = ["a"] * first[0] + ["b"] * second[0]
        return separation((x[:, None] - x) ** 2, labels=labels, permutations=499, seed=seed)

    return separated


def family_of_gates(gates: int, n: int, runs: int, seed: int = 3) -> tuple[float, float]:
    """How often any of so many gates at its margin fails, uncorrected and by Holm."""
    source, raw, held = np.random.default_rng([seed, gates, n]), 0, 0
    for _ in range(runs):
        drawn = [FAMILIES[0].draw(source, n, 1.0) for _ in range(gates)]
        found = [compare(keyed(b), keyed(c), alpha=ALPHA, **FAMILIES[0].options("symmetric")) for b, c in drawn]
        raw += any(one.verdict == "fail" for one in found)
        held += any(one.verdict == "fail" for one in correct(found))
    return raw / runs, held / runs


SEPARATIONS = {
    "6 runs beside 6, alike": of_streams((6, 60, 0.1), (6, 60, 0.1)),
    "3 runs that vary beside 12 that hardly do": of_streams((3, 60, 0.5), (12, 60, 0.02)),
    "12 runs that vary beside 3 that hardly do": of_streams((12, 60, 0.5), (3, 60, 0.02)),
    "3 short runs beside 12 long ones": of_streams((3, 30, 0.05), (12, 300, 0.05)),
    "12 short runs beside 3 long ones": of_streams((12, 30, 0.05), (3, 300, 0.05)),
    "5 short runs beside 5 long ones": of_streams((5, 30, 0.05), (5, 300, 0.05)),
    "6 numbers beside 12 of a sixth of their deviation": of_numbers((6, 3.0), (12, 0.5)),
    "3 numbers beside 12 of a sixth of their deviation": of_numbers((3, 3.0), (12, 0.5)),
}
#: Permutations of squared distances are no exact test of arms whose spreads differ, and an arm of three shows it.
BEYOND = "3 numbers beside 12 of a sixth of their deviation"


# -- tables ------------------------------------------------------------------------------------------------------------


def percent(*rates: float) -> str:
    return " / ".join(f"{100 * rate:.1f}" for rate in rates)


def table(title: str, head: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print(f"### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print(flush=True)


def at_the_margin(runs: int) -> Iterator[Sequence[str]]:
    for family in FAMILIES:
        for assume in family.assumptions:
            cells = []
            for n in SIZES:
                found = verdicts(family, n, assume, 1.0, runs)
                cells.append(percent(found["pass"], found["fail"]))
            yield family.name, assume, "yes" if assume in family.holds else "no", *cells


def without_change(runs: int) -> Iterator[Sequence[str]]:
    for family in FAMILIES:
        for assume in (one for one in family.assumptions if one != "normal"):
            cells = []
            for n in SIZES:
                found = verdicts(family, n, assume, 0.0, runs)
                cells.append(percent(found["pass"], found["fail"]))
            yield family.name, assume, *cells


def in_groups(runs: int) -> Iterator[Sequence[str]]:
    source = np.random.default_rng(4)
    for skewed in (False, True):
        for sizes, spreads in (((10, 10), (1, 1)), ((20, 5), (1, 3)), ((5, 20), (1, 3))):
            found = [
                compare(*unpaired(source, sizes, spreads, skewed), direction="higher", margin=1.0).verdict
                for _ in range(runs)
            ]
            name = "log-normal" if skewed else "normal"
            rates = percent(found.count("pass") / runs, found.count("fail") / runs)
            yield name, f"{sizes[0]} and {sizes[1]}", f"{spreads[0]} and {spreads[1]}", rates


def means(runs: int, *, looks: bool) -> Iterator[Sequence[str]]:
    for name, (_, _, bounds, holds) in MEANS.items():
        held = "no" if not holds and not looks else "no" if name == "skew" else "yes"
        cells = []
        for n in SIZES:
            found = of_a_mean(name, n, runs, looks=looks)
            cells.append(percent(found["pass"], found["fail"]))
        yield name, "declared" if bounds else "none", held, *cells


def over_looks(runs: int) -> Iterator[Sequence[str]]:
    by_name = {family.name: family for family in FAMILIES}
    for name, assume in (
        ("normal", "symmetric"),
        ("heavy tails (t, 3 degrees)", "symmetric"),
        ("share of 20 episodes", "symmetric"),
        ("solved or not", "bounded"),
        ("one-sided skew", "symmetric"),
        ("rare collapse in noise", "symmetric"),
        ("rare collapse in noise", "bounded"),
    ):
        for n_max in (10, 20, 50):
            cells = []
            for share in (1.0, 0.0, 2.0):
                found, spent = stopped(by_name[name], n_max, assume, share, runs)
                cells.append(f"{percent(found['pass'], found['fail'])} / {spent:.1f}")
            yield name, assume, str(n_max), *cells


def main() -> None:
    parser = argparse.ArgumentParser(description="Error rates of verdicts, as tables in Markdown.")
    parser.add_argument("--runs", type=int, default=1000, help="simulated comparisons for each number (default 1000)")
    runs = parser.parse_args().runs
    print_fixed(runs)
    print_others(max(1, runs // 4))
    print_separations(runs)


def print_fixed(runs: int) -> None:
    sizes = [f"n = {n}" for n in SIZES]
    error = 100 * 1.96 * math.sqrt(ALPHA * (1 - ALPHA) / runs)
    print(f"Each number comes from {runs} comparisons: a rate of 5 % is 5 ± {error:.1f}.\n")
    table("At the margin: wrong passes / wrong fails, %", ["values", "assumed", "true?", *sizes], at_the_margin(runs))
    table("Without a change: right passes / wrong fails, %", ["values", "assumed", *sizes], without_change(runs))
    table(
        "Without pairs, at the margin: wrong passes / wrong fails, %",
        ["values", "runs", "standard deviations", "Welch"],
        in_groups(runs),
    )
    head = ["values", "bounds", "true?", *sizes]
    table("A mean that lies at its bound: wrong passes / wrong fails, %", head, means(runs, looks=False))


def print_others(fewer: int) -> None:
    head = ["values", "bounds", "true?", *[f"n ≤ {n}" for n in SIZES]]
    title = (
        f"A mean that lies at its bound, looked at after each seed ({fewer} sequences): wrong passes / wrong fails, %"
    )
    table(title, head, means(fewer, looks=True))
    table(
        f"Looking after each seed ({fewer} sequences): passes / fails, %, / seeds spent",
        ["values", "assumed", "seeds at most", "at the margin", "no change", "twice the margin"],
        over_looks(fewer),
    )
    table(
        f"Twenty gates, all at their margin ({fewer} sweeps, n = 10): any fails, %",
        ["uncorrected", "Holm"],
        iter([[percent(rate) for rate in family_of_gates(20, 10, fewer)]]),
    )


def print_separations(runs: int) -> None:
    table(
        f"Arms of one policy told apart ({runs} sweeps), %",
        ["arms", "p", "p_R"],
        ((name, *map(percent, separations(arms, runs))) for name, arms in SEPARATIONS.items()),
    )


if __name__ == "__main__":
    main()
