"""The points of a sweep, which are all combinations of the given values, and the baseline of each setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from persia_cli.errors import ConfigError

SEED = "seed"
FOLD = "dataset.split.offset"
REPEATS = (SEED, FOLD)
"""The keys whose values repeat a setting instead of making another one."""

Setting = tuple[tuple[str, str], ...]
"""Swept keys other than those of REPEATS, each with its value as written, in the order of the command line."""


@dataclass(frozen=True)
class NumberRange:
    """Numbers that a search draws from, `low` and `high` among them; whole numbers if these are."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """True if all its numbers are whole."""
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    def number(self, text: str) -> float:
        """Return one of its numbers from its text."""
        return int(text) if self.is_whole else float(text)

    def text(self, value: float) -> str:
        """Return one of its numbers as text, a fraction with six digits."""
        if self.is_whole:
            return str(int(value))
        short = f"{value:.{12 if self.step else 6}g}"
        return short if self.low <= float(short) <= self.high else repr(float(value))


@dataclass(frozen=True)
class Axis:
    """An argument of the command line: a key and its values, of which there is one if the key is not swept."""

    key: str
    arguments: tuple[str, ...]
    """`KEY=VALUE`, once for each value; of a span once for each end and a number between."""
    span: NumberRange | None = None

    @property
    def word(self) -> str:
        """The key with Hydra's plus signs."""
        return self.arguments[0].partition("=")[0]

    @property
    def swept(self) -> bool:
        """True if there is more than one value."""
        return len(self.arguments) > 1


@dataclass(frozen=True)
class Point:
    """One training job of a sweep."""

    arguments: tuple[str, ...]
    """Arguments of `persia train`."""
    swept: Setting
    """The keys that differ between points, with their values."""

    @property
    def setting(self) -> Setting:
        """All swept keys but those of REPEATS; metrics are averaged over the points of a setting."""
        return tuple((key, value) for key, value in self.swept if key not in REPEATS)

    @property
    def names_seed(self) -> bool:
        """True if its seed is swept; of a search, if it repeats a trial with another seed."""
        return SEED in dict(self.swept)

    @property
    def label(self) -> str:
        """Name in messages: the swept arguments, or all of them if nothing is swept."""
        return " ".join(f"{key}={value}" for key, value in self.swept) or " ".join(self.arguments) or "the job"

    def without(self, key: str) -> "Point":
        """Return the point without the argument of a key."""
        arguments = tuple(word for word in self.arguments if key_of(word) != key)
        return Point(arguments, tuple(pair for pair in self.swept if pair[0] != key))


def key_of(word: str) -> str:
    """Return the key of a `KEY=VALUE` argument, without Hydra's plus signs."""
    return word.partition("=")[0].lstrip("+")


def value_of(word: str) -> str:
    """Return the value of a `KEY=VALUE` argument."""
    return word.partition("=")[2]


def combine(axes: Sequence[Axis]) -> list[Point]:
    """Return every combination of the axes' arguments; the last axis changes fastest."""
    return [point_of(axes, arguments) for arguments in product(*(axis.arguments for axis in axes))]


def point_of(axes: Sequence[Axis], arguments: Sequence[str]) -> Point:
    """Return the point with one argument of each axis."""
    swept = [(key_of(word), value_of(word)) for axis, word in zip(axes, arguments, strict=True) if axis.swept]
    return Point(tuple(arguments), tuple(swept))


def name_setting(setting: Setting) -> str:
    """Return a setting as arguments."""
    return " ".join(f"{key}={value}" for key, value in setting) or "defaults"


def short_name(setting: Setting) -> str:
    """Return a setting for a picture: options of groups by themselves, of other keys the last part."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" if "." in key else value for key, value in setting)


def settings_of(points: Sequence[Point]) -> list[Setting]:
    """Return the settings of the points, each once, in order."""
    return list(dict.fromkeys(point.setting for point in points))


def default_baseline(settings: Sequence[Setting]) -> str | None:
    """Return the default baseline: sync, or else the smallest swept staleness."""
    if len(settings) < 2:
        return None
    values: dict[str, list[str]] = {}
    for setting in settings:
        for key, value in setting:
            values.setdefault(key, []).append(value)
    if "sync" in values.get("mode", []):
        return "mode=sync"
    staleness = sorted({int(value) for value in values.get("mode.staleness", []) if value.isdecimal()})
    return f"mode.staleness={staleness[0]}" if len(staleness) > 1 else None


def baselines(settings: Sequence[Setting], baseline: str) -> dict[Setting, Setting]:
    """Return the baseline of each setting: the one with the values of `baseline`, and otherwise the same values.

    `baseline` is one or more `KEY=VALUE`, separated by spaces. A key that the baseline's setting does not have (sync
    has no staleness) does not count. Raises ConfigError if it is not in the sweep, or matches several settings.
    """
    wanted = dict(word.partition("=")[::2] for word in baseline.split())
    candidates = [setting for setting in settings if wanted.items() <= dict(setting).items()]
    if not wanted or not candidates:
        there = "; ".join(name_setting(setting) for setting in settings)
        raise ConfigError(f"--baseline {baseline!r} is not a point of this sweep; its points are: {there}")
    found = {}
    for setting in settings:
        alike = [candidate for candidate in candidates if _same(dict(setting), dict(candidate), wanted)]
        if setting in alike:
            alike = [setting]
        if len(alike) != 1:
            several = "; ".join(name_setting(each) for each in alike) or "none"
            raise ConfigError(
                f"--baseline {baseline!r} does not determine a baseline for the point {name_setting(setting)} "
                f"({several}); name more keys, e.g. --baseline {name_setting(candidates[0])!r}"
            )
        found[setting] = alike[0]
    return found


def _same(setting: Mapping[str, str], candidate: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return True if two settings have equal values of all keys that both have and the baseline does not name."""
    return all(setting.get(key, value) == value for key, value in candidate.items() if key not in wanted)
