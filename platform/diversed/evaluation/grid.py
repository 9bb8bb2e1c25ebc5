"""What an evaluation compares: methods with their parameters, at every temperature and draft length.

A method is written `NAME` or `NAME:field=value:field=value`, e.g. `strict`, `static:weight=0.5`, `token-v3:alpha=0.3`,
`typical:repaired=yes`. Fields are those of `decode` and the rule's own parameters; values separated by `/` stand for
one method each: `lossy:alpha=0.1/0.3/0.5`. `diversed:checkpoint=FOLDER` takes that verifier instead of
`verifier.checkpoint`; `checkpoint=NAME=FOLDER` also says what it is called here, which else is the folder's name.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from diversed.errors import ConfigError
from diversed.evaluation.compare import Variant
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import DecodeSettings, Method, Settings
from diversed.verification import rule_of

__all__ = ["cells", "grid", "matched_static", "static_variant"]

# Fields of `decode` that a method may set; the others are the same for all, or dimensions of the grid.
FIELDS = ("weight", "cap", "repaired", "drafter", "ngram")
SHORT = {"weight": "w"}


def cells(settings: Settings) -> list[DecodeSettings]:
    """`settings.decode` at each temperature and draft length of the grid; first as it is, if it is one of them."""
    evaluate, decode = settings.evaluate, settings.decode
    temperatures = evaluate.temperatures or [decode.temperature]
    lengths = evaluate.draft_lengths or [decode.draft_length]
    pairs = dict.fromkeys(itertools.product(temperatures, lengths))
    own = (decode.temperature, decode.draft_length)
    ordered = sorted(pairs, key=lambda pair: pair != own)
    return [_changed(decode, {"temperature": temperature, "draft_length": n}) for temperature, n in ordered]


def grid(settings: Settings, load: Callable[[str], nn.Module]) -> list[Variant]:
    """All variants of `settings.evaluate`; one that drafts nothing occurs once per temperature.

    `load` opens a verifier. DIVERSED is left out where no checkpoint is named. ConfigError for a method that cannot be
    run, or that stands there twice.
    """
    heads: dict[str, nn.Module] = {}
    variants: dict[tuple[str, str], Variant] = {}
    for decode in cells(settings):
        for text in settings.evaluate.methods:
            for fields in _spread(text):
                variant = _variant(decode, text, fields, settings.verifier.checkpoint, load, heads)
                if variant is None:
                    continue
                key = (variant.cell, variant.label)
                if key in variants and variant.decode.method.drafts:
                    raise ConfigError(f"evaluate.methods: {variant.label!r} occurs twice; leave one out")
                variants.setdefault(key, variant)
    return list(variants.values())


def static_variant(decode: DecodeSettings, weight: float) -> Variant:
    """The paper's static ensemble: one weight everywhere and no cap, whatever cap DIVERSED runs with."""
    fields = {"method": Method.STATIC, "weight": weight, "cap": float("inf")}
    return Variant(_label(Method.STATIC, {"weight": weight}), _changed(decode, fields))


def matched_static(
    decode: DecodeSettings, results: Mapping[tuple[str, str], Sequence[ExampleResult]], variants: Sequence[Variant]
) -> Variant | None:
    """The static ensemble that accepts as much as DIVERSED did in the cell of `decode`; None if no weight does.

    This is the training-free way to the same speed. A static rule accepts with probability 1 - w*TV at each position,
    so between strict (w = 1), the weights that were run and w = 0 (accepts all) the acceptance falls steadily with w.
    """
    cell = static_variant(decode, 1.0).cell
    here = {variant.label: variant for variant in variants if variant.cell == cell}
    ours = next((label for label, variant in here.items() if variant.decode.method is Method.DIVERSED), None)
    if ours is None:
        return None
    weights = {
        label: variant.decode.weight if variant.decode.method is Method.STATIC else 1.0
        for label, variant in here.items()
        if variant.decode.method in (Method.STATIC, Method.STRICT) and variant.decode.cap == float("inf")
    }
    points = sorted([(1.0, 0.0), *((_acceptance(results[cell, label]), w) for label, w in weights.items())])
    wanted = _acceptance(results[cell, ours])
    if not points[0][0] < wanted < 1:
        return None
    weight = float(np.interp(wanted, [acceptance for acceptance, _ in points], [weight for _, weight in points]))
    variant = static_variant(decode, round(weight, 3))
    return None if variant.label in here else variant


def _acceptance(results: Sequence[ExampleResult]) -> float:
    return sum(result.accepted for result in results) / max(1, sum(result.verified for result in results))


def _variant(
    decode: DecodeSettings,
    text: str,
    fields: dict[str, str],
    checkpoint: str | None,
    load: Callable[[str], nn.Module],
    heads: dict[str, nn.Module],
) -> Variant | None:
    method = Method(text.partition(":")[0])
    own = fields.get("checkpoint")
    if own is not None and method is not Method.DIVERSED:
        raise ConfigError(f"evaluate.methods: {text!r}: only diversed has a checkpoint")
    shown = {name: value for name, value in fields.items() if name != "checkpoint"}
    # The cap of `decode` is DIVERSED's; weights of `decode` are for no method that does not name one.
    changes: dict[str, Any] = {"method": method, "parameters": {}, "repaired": False}
    if method is not Method.DIVERSED:
        changes["cap"] = float("inf")
    changes |= {name: value for name, value in shown.items() if name in FIELDS}
    changes["parameters"] = {name: value for name, value in shown.items() if name not in FIELDS}
    changed = _changed(decode, changes, text)
    try:
        rule_of(changed)
    except ConfigError as error:
        raise ConfigError(f"evaluate.methods: {text!r}: {str(error).removeprefix('decode.parameters.')}") from error
    shown_values = {name: getattr(changed, name, changed.parameters.get(name)) for name in shown}
    if method is not Method.DIVERSED:
        return Variant(_label(method, shown_values), changed)
    name, equals, source = (own or checkpoint or "").rpartition("=")
    if not source:
        return None
    if source not in heads:
        heads[source] = load(source)
    called = "" if own is None else f" ({name if equals else Path(source).name})"
    return Variant(_label(method, shown_values) + called, changed, heads[source])


def _label(method: Method, values: Mapping[str, Any]) -> str:
    words = [method.value]
    for name, value in values.items():
        if isinstance(value, bool):
            words += [name] if value else []
        else:
            words.append(f"{SHORT.get(name, name)}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return " ".join(words)


def _spread(text: str) -> list[dict[str, str]]:
    """The fields of each method that `text` stands for."""
    names, choices = [], []
    for field in text.split(":")[1:]:
        name, equals, value = field.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"evaluate.methods: {text!r}: {field!r} is no field=value")
        names.append(name.replace("-", "_"))
        choices.append([value] if name == "checkpoint" else value.split("/"))
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*choices)]


def _changed(decode: DecodeSettings, changes: Mapping[str, Any], text: str | None = None) -> DecodeSettings:
    """A validated copy; ConfigError names the method that asked for what is not valid."""
    try:
        return DecodeSettings(**{**decode.model_dump(), **changes})
    except ValueError as error:
        reason = str(error).splitlines()[2].strip() if len(str(error).splitlines()) > 2 else str(error)
        raise ConfigError(f"evaluate.methods: {text!r}: {reason}") from error
