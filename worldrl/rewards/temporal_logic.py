"""Rules over signals in time (signal temporal logic): how far a rule is kept, or broken, in the units of its signals.

The robustness ρ is below 0 where a rule is broken, and its size says by how much::

    ρ(x >= c) = x - c        ρ(not φ) = -ρ(φ)        ρ(φ and ψ) = min(ρ(φ), ρ(ψ))        ρ(φ or ψ) = max(ρ(φ), ρ(ψ))
    ρ(always(φ, a, b))(t)     = min of ρ(φ) over [t + a, t + b]
    ρ(eventually(φ, a, b))(t) = max of ρ(φ) over [t + a, t + b]
    ρ(until(φ, ψ, a, b))(t)   = max over u in [t + a, t + b] of min(ρ(ψ)(u), min of ρ(φ) over [t, u))

``a`` and ``b`` are seconds; without them the rest of the recording counts. Windows end with the recording. Rules have
Python's syntax, and nothing in them is executed; a signal's name may be quoted. Source: Maler and Nickovic 2004; Donze
and Maler 2010.

Shapes legend: ``T`` frames; signals are ``[..., T]``, numbers or flags (bool).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worldrl.core.errors import SettingError, nearest

Signals = Mapping[str, Tensor]

LONGEST = 500
"""Characters of a rule; a longer one could nest deeper than it can be read."""
FORMULAS = ("always", "eventually", "until", "implies")
TERMS = ("abs", "norm", "rate")


def always(inner: Tensor, first: int = 0, last: int | None = None) -> Tensor:
    """Least value over the window of ``first`` to ``last`` steps ahead, ``[..., T]``; inf where the window is empty."""
    return -eventually(-inner, first, last)


def eventually(inner: Tensor, first: int = 0, last: int | None = None) -> Tensor:
    """Greatest value over the window of ``first`` to ``last`` steps ahead, ``[..., T]``; -inf where it is empty."""
    steps = inner.shape[-1]
    first = min(first, steps)
    last = steps if last is None else min(last, steps)
    padded = F.pad(inner, (0, last), value=-math.inf)[..., first:]
    return padded.unfold(-1, last - first + 1, 1).amax(dim=-1)


def until(hold: Tensor, then: Tensor, first: int = 0, last: int | None = None) -> Tensor:
    """How far ``hold`` is kept up to a step within the window at which ``then`` is, ``[..., T]``."""
    steps = hold.shape[-1]
    kept, best = torch.full_like(hold, math.inf), torch.full_like(hold, -math.inf)
    for ahead in range(min(steps - 1, steps if last is None else last) + 1):
        left = steps - ahead
        if ahead >= first:
            reached = then[..., ahead:].minimum(kept[..., :left])
            best[..., :left] = best[..., :left].maximum(reached)
        kept[..., :left] = kept[..., :left].minimum(hold[..., ahead:])
    return best


@dataclass(frozen=True)
class Rule:
    """A named rule; SettingError where its text is none."""

    name: str
    text: str

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        self.parsed()

    def parsed(self) -> ast.expr:
        """Return the expression, read and not executed; SettingError where it is none."""
        if len(self.text) > LONGEST:
            raise self.refused(f"has {len(self.text)} characters, at most {LONGEST} are read; split it into several")
        try:
            return ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.refused(
                f"{self.text!r} cannot be read ({error}); write for example always(z >= 0.02)"
            ) from error

    def refused(self, why: str) -> SettingError:
        """Make the error that names the rule."""
        return SettingError(f"rules.{self.name}: {why}")

    def check(self, names: Collection[str], flags: Collection[str] = (), *, frame_s: float) -> None:
        """Refuse a rule that numbers of these names, and flags, do not decide; SettingError with what it lacks."""
        numbers = {name: torch.zeros(2) for name in names}
        self.robustness(numbers | {name: torch.zeros(2, dtype=torch.bool) for name in flags}, frame_s)

    def robustness(self, signals: Signals, frame_s: float) -> Tensor:
        """ρ at each frame, ``[..., T]``, for frames ``frame_s`` seconds apart; SettingError: an unknown signal or word."""
        return _Reading(self, signals, frame_s).formula(self.parsed())


@dataclass(frozen=True)
class _Reading:
    """One rule over one recording."""

    rule: Rule
    signals: Signals
    frame_s: float

    def formula(self, node: ast.expr) -> Tensor:
        """ρ of a part that is kept or broken."""
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return torch.stack([self.formula(value) for value in values]).amin(dim=0)
            case ast.BoolOp(op=ast.Or(), values=values):
                return torch.stack([self.formula(value) for value in values]).amax(dim=0)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return -self.formula(inner)
            case ast.Compare():
                return self.comparison(node)
            case ast.Name(id=name) if self.is_flag(name):
                return torch.where(self.signals[name], math.inf, -math.inf)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FORMULAS:
                return self.temporal(name, args)
            case _:
                text = ast.unparse(node)
                raise self.rule.refused(f"{text!r} is neither kept nor broken; compare numbers, as in {text} >= 0.02")

    def comparison(self, node: ast.Compare) -> Tensor:
        """ρ of ``a <= b`` and ``a >= b``, also in a row."""
        terms = [self.term(part) for part in (node.left, *node.comparators)]
        margins = list[Tensor]()
        for operator, left, right in zip(node.ops, terms[:-1], terms[1:], strict=True):
            if not isinstance(operator, ast.LtE | ast.GtE):
                raise self.rule.refused(f"{ast.unparse(node)!r} needs >= or <=: robustness knows no other comparison")
            margins.append(right - left if isinstance(operator, ast.LtE) else left - right)
        return torch.stack(margins).amin(dim=0)

    def temporal(self, name: str, args: list[ast.expr]) -> Tensor:
        """ρ of a word with formulas and, for the temporal ones, a window in seconds."""
        count = 2 if name in ("until", "implies") else 1
        window = args[count:]
        if len(args) < count or (window and (name == "implies" or len(window) != 2)):
            bounds = "" if name == "implies" else ", and two times in seconds or none"
            raise self.rule.refused(f"{name} needs {count} formula{'s' * (count > 1)}{bounds}")
        inner = [self.formula(arg) for arg in args[:count]]
        if name == "implies":
            return (-inner[0]).maximum(inner[1])
        word: Callable[..., Tensor] = {"always": always, "eventually": eventually, "until": until}[name]
        return word(*inner, *self.window(window))

    def window(self, nodes: list[ast.expr]) -> tuple[int, int | None]:
        """First and last step of a window in seconds; all that follows where none is given."""
        if not nodes:
            return 0, None
        times = [node.value if isinstance(node, ast.Constant) else None for node in nodes]
        first, last = (float(time) if isinstance(time, int | float) else math.nan for time in times)
        if not 0 <= first <= last < math.inf:
            given = ", ".join(map(ast.unparse, nodes))
            raise self.rule.refused(f"a window goes from a time to a later one, in seconds from 0 on, got {given}")
        first_step, last_step = math.ceil(first / self.frame_s - 1e-6), math.floor(last / self.frame_s + 1e-6)
        if first_step > last_step:
            raise self.rule.refused(
                f"no frame lies between {first:g} and {last:g} s: they are {self.frame_s:g} s apart"
            )
        return first_step, last_step

    def term(self, node: ast.expr) -> Tensor:
        """A number at each frame, ``[..., T]``."""
        like = next(value for value in self.signals.values() if value.dtype != torch.bool)
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return torch.full_like(like, value)
            case ast.Constant(value=str() as name):
                return self.signal(name)
            case ast.Name() | ast.Attribute():
                return self.signal(ast.unparse(node))
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.term(inner)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right=right):
                return _calculated(op, self.term(left), self.term(right))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in TERMS:
                return self.function(name, [self.term(arg) for arg in args])
            case _:
                known = f"signals, numbers, + - * /, {', '.join(TERMS)}"
                raise self.rule.refused(f"{ast.unparse(node)!r} is no number; there are {known}")

    def function(self, name: str, values: list[Tensor]) -> Tensor:
        """``norm`` of any number of values; ``abs``, and ``rate`` per second (the last frame's is that before)."""
        if name == "norm":
            return torch.stack(values).square().sum(dim=0).sqrt()
        if len(values) != 1:
            raise self.rule.refused(f"{name} needs one value, got {len(values)}")
        if name == "abs":
            return values[0].abs()
        change = values[0].diff(dim=-1) / self.frame_s
        return torch.cat([change, change[..., -1:]], dim=-1)

    def signal(self, name: str) -> Tensor:
        """One recorded number; SettingError with the nearest name."""
        if name not in self.signals:
            raise self.rule.refused(f"no signal {name!r}{nearest(name, self.signals)}")
        if self.is_flag(name):
            raise self.rule.refused(f"{name!r} is yes or no, and no number; write it alone, as in not {name}")
        return self.signals[name]

    def is_flag(self, name: str) -> bool:
        """Whether a signal is yes or no; its robustness is infinite."""
        return name in self.signals and self.signals[name].dtype == torch.bool


def _calculated(op: ast.operator, left: Tensor, right: Tensor) -> Tensor:
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    return left * right if isinstance(op, ast.Mult) else left / right
