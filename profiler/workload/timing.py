"""Unprofiled time, peak memory and error of configurations, those that are compared interleaved in random order."""

from __future__ import annotations

import random
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Any

import torch

from profiler.errors import BadInput
from profiler.spec import RunConfig, parameters_text
from profiler.workload import accuracy, gradients, inputs, patterns
from profiler.workload.clock import GpuClock, HostClock
from profiler.workload.device import Sensors, throttle_words
from profiler.workload.implementations import Bound, Refused, bind, no_stage
from profiler.workload.peers import Missing

BUDGET_S = 0.25  # timed seconds a configuration, both calls of a pair and the flush
FEWEST, MOST = 7, 60  # timed pairs a configuration
WARM_UP_MOST, WARM_UP_S, STEADY = 20, 0.3, 0.05


@dataclass
class Subject:
    """One configuration being timed."""

    config: RunConfig
    call: Callable[[], Any]
    row: dict[str, Any]
    repetitions: int = 0
    late: int = 0  # repetitions whose launches came later than the GPU waited for them
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    clocks: list[float] = field(default_factory=list)
    powers: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    throttles: list[int] = field(default_factory=list)

    def read(self, sensors: Sensors) -> None:
        """Note what the sensors say now; what one does not say is left out."""
        for reading, into in (
            (sensors.clock_hz(), self.clocks),
            (sensors.power_w(), self.powers),
            (sensors.temperature_c(), self.temperatures),
        ):
            if reading is not None:
                into.append(reading)
        if (bits := sensors.throttle_bits()) is not None:
            self.throttles.append(bits)


def row_of(config: RunConfig, status: str, **values: Any) -> dict[str, Any]:
    """A timings row of this configuration."""
    return {**config.key(), "parameters": parameters_text(config.parameters), "status": status, **values}


def reason(error: BaseException, heard: Iterable[warnings.WarningMessage] = ()) -> str:
    """Why a configuration has no value, as its status: out of memory, refused, or failed with the error's first line.

    torch says in warnings why each attention backend cannot run, so those texts are part of the reason.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, Missing):
        return f"missing: {first}"
    if isinstance(error, (Refused, ValueError, TypeError, NotImplementedError, BadInput)):
        return f"refused: {first}"
    if re.search("No available kernel|No viable backend", first):
        texts = [str(w.message).split(" (Triggered")[0].strip() for w in heard]
        said = [text for text in texts if "not used because" not in text and "disabled" not in text]
        return "refused: " + " ".join([first, *dict.fromkeys(said)])[:400]
    return f"failed: {type(error).__name__}: {first}"[:400]


def is_sticky(error: BaseException) -> bool:
    """Whether the CUDA context is lost, so that nothing later in this process can be trusted."""
    return not isinstance(error, torch.OutOfMemoryError) and "CUDA error" in str(error)


def by_shape(configs: Iterable[RunConfig]) -> Iterator[list[RunConfig]]:
    """Configurations of one shape, direction and pattern together, smallest work first so that a crash loses least."""

    def key(config: RunConfig) -> tuple:
        s = config.shape
        pattern = parameters_text(patterns.of(config))
        return s.matrix_bytes, s.head_dim, s.mask, s.dtype, repr(s), config.direction, pattern

    for _, group in groupby(sorted(configs, key=key), key=key):
        yield list(group)


def together(configs: Iterable[RunConfig]) -> Iterator[list[RunConfig]]:
    """What is timed in the same rounds: a group of `by_shape`, but windows, grouped heads and packed sequences beside
    the plain calls of as many tokens, heads and head size, for their cost is told by these."""
    groups = list(by_shape(configs))
    joined = {c.family for group in groups for c in group if not c.plain and c.shape.nq == c.shape.nk}
    found: dict[Any, list[RunConfig]] = {}
    for number, group in enumerate(groups):
        one = group[0].family
        found.setdefault(one if one in joined else number, []).extend(group)
    yield from found.values()


def measure(
    configs: list[RunConfig],
    clock: GpuClock | HostClock,
    sensors: Sensors,
    *,
    device: str,
    seed: int,
    starting: Callable[[RunConfig], None],
) -> Iterator[dict[str, Any]]:
    """Timings rows of configurations that are timed in the same rounds. ``starting`` is told of each before its first
    call.

    A configuration that cannot run yields a row whose status says why; the others go on.
    """
    subjects: list[Subject] = []
    for alike in by_shape(configs):
        try:
            tensors = inputs.of(alike[0], device, seed)
            with torch.no_grad():
                expected = (accuracy if len(tensors) == 3 else gradients).expect(
                    *tensors, patterns.causal(alike[0]), patterns.hidden(alike[0], device))
        except (BadInput, Refused, torch.OutOfMemoryError) as error:
            yield from (
                row_of(config, reason(error), note="while the inputs and their float64 reference were made")
                for config in alike
            )
            continue
        for config in alike:
            starting(config)
            with warnings.catch_warnings(record=True) as heard, torch.no_grad():
                warnings.simplefilter("always")
                try:
                    subject = prepare(config, bind(config, *tensors), expected, clock)
                except Exception as error:  # whatever an implementation raises is its result; the next one still runs
                    yield row_of(config, reason(error, heard))
                    if is_sticky(error):
                        raise
                    clock.free()
                    continue
            if subject.repetitions:
                subjects.append(subject)
            else:
                yield subject.row
        del tensors, expected
    with torch.no_grad():
        interleave(subjects, clock, sensors, random.Random(seed))
    yield from map(summary, subjects)
    del subjects
    clock.free()


def prepare(
    config: RunConfig,
    bound: Bound,
    expected: accuracy.Expected | gradients.ExpectedGradients,
    clock: GpuClock | HostClock,
) -> Subject:
    """Compile, check against float64, measure memory, warm up until steady, and choose the number of repetitions."""

    def call() -> Any:
        return bound.call(no_stage)

    expected = bound.expected() if bound.expected else expected
    compared = expected.compare(bound.unpack(call()))
    finite = compared.pop("finite")
    row = row_of(config, "ok", **compared, note="; ".join(filter(None, (clock.how, bound.note))))
    row["parameters"] = parameters_text(bound.parameters)
    subject = Subject(config, call, row)
    eager = compared["error_eager_relative"] or 0.0
    if not finite:
        row["status"] = "wrong: the output holds NaN or infinite values"
    elif compared["error_relative"] > most(eager):
        row["status"] = (
            f"wrong: relative error {compared['error_relative']:.2g} against float64, "
            f"where eager PyTorch makes {eager:.2g}"
        )
    if row["status"] != "ok" and not bound.foreign:  # ours must be right to be timed; a visitor's function is shown
        return subject
    row["peak_memory_bytes"] = clock.peak_memory(call)
    if bound.training and (peak := clock.peak_memory(bound.training)) is not None:
        row["note"] += f"; forward and backward together: a peak of {peak:.0f} bytes above Q, K, V and dO"
    if bound.timed:
        subject.repetitions = repetitions(warm_up(call, clock))
    return subject


def most(eager: float) -> float:
    """The largest relative error of a right result: some times that of eager PyTorch in the same dtype. A tenth is a
    fault in any dtype, unless eager itself is that far off."""
    return max(min(10 * eager, 0.1), 2 * eager, 1e-3)


def warm_up(call: Callable[[], Any], clock: GpuClock | HostClock) -> float:
    """Call until two pairs in a row agree within STEADY; seconds that a pair takes, flush included."""
    last, began = None, time.perf_counter()
    for done in range(1, WARM_UP_MOST + 1):
        started = time.perf_counter()
        cold, _ = clock.read(clock.pair(call))
        pair_s = time.perf_counter() - started
        steady = last is not None and abs(cold - last) <= STEADY * last
        if done >= 3 and (steady or time.perf_counter() - began > WARM_UP_S):
            break
        last = cold
    return pair_s


def repetitions(pair_s: float) -> int:
    """How many timed pairs fit the budget, within FEWEST and MOST."""
    return max(FEWEST, min(MOST, int(BUDGET_S / max(pair_s, 1e-9))))


def interleave(subjects: list[Subject], clock: GpuClock | HostClock, sensors: Sensors, order: random.Random) -> None:
    """Time all subjects in rounds, each in a new random order, so that drift of clocks and heat meets all alike."""
    for number in range(max((s.repetitions for s in subjects), default=0)):
        active = [s for s in subjects if number < s.repetitions]
        order.shuffle(active)
        for subject in active:
            try:
                cold, warm = clock.read(clock.pair(subject.call))
            except torch.OutOfMemoryError as error:  # alone it fitted, beside what the others keep it does not
                subject.row = row_of(subject.config, reason(error))
                subject.repetitions = 0
                clock.free()
                continue
            if number >= subject.repetitions - 3:
                subject.read(sensors)
            subject.late += clock.late
            subject.cold.append(cold)
            subject.warm.append(warm)


def summary(subject: Subject) -> dict[str, Any]:
    """The finished row: median, 20th and 80th percentile, readings of the sensors."""
    if not subject.repetitions:
        return subject.row
    if subject.late:
        subject.row["note"] += f"; in {subject.late} of {len(subject.cold)} repetitions the GPU waited for launches"
    fifths = statistics.quantiles(subject.cold, n=5, method="inclusive")
    return {
        **subject.row,
        "median_ns": statistics.median(subject.cold),
        "p20_ns": fifths[0],
        "p80_ns": fifths[3],
        "warm_median_ns": statistics.median(subject.warm),
        "repetitions": len(subject.cold),
        "sm_clock_hz": statistics.median(subject.clocks) if subject.clocks else None,
        "power_w": statistics.median(subject.powers) if subject.powers else None,
        "temperature_c": statistics.median(subject.temperatures) if subject.temperatures else None,
        "throttle": throttle_words(reduce(or_, subject.throttles)) if subject.throttles else None,
    }
