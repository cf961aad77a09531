"""A run spread over the GPUs of a Dask cluster: one GPU to a worker, one share to a task. Dask schedules and retries.

All configurations of one shape stay in one share, so that what is compared was measured on one GPU. A worker that dies
is replaced and its share measured elsewhere; a share that ends several workers is taken apart, and the configuration
that does so alone is set aside and named.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from profiler.collect import gpu, lock, pace, share, worker
from profiler.collect.passes import Reporter
from profiler.collect.share import Measured, Order, Place
from profiler.errors import BadInput, FlashScopeError, RunFailed
from profiler.spec import RunConfig, parameters_text

SHARES = 2  # of each worker: few process starts, and the last worker to finish is not far behind
DEATHS = 2  # workers that a share may end before it is taken apart
TOPIC = "flashscope"
INSTALL = "pip install -r requirements-dask.txt"
_known: set[tuple[str, str]] = set()  # on a worker: (run, GPU) whose ceilings are measured; they take 8 s on an H200


def scheduler(workers: str) -> str | None:
    """The address in ``--workers dask=ADDRESS``, None for ``dask``: workers on this machine's GPUs."""
    name, _, address = workers.partition("=")
    if name != "dask" or workers == "dask=":
        raise BadInput(f"--workers: expected dask or dask=SCHEDULER, got {workers!r}.",
                       remedy="As in dask=tcp://head-node:8786, or dask for this machine's GPUs.")
    return address or None


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """A Client of the cluster at ``address``, or of one made here for as long: a worker for each visible GPU."""
    try:
        from distributed import Client
    except ImportError as error:
        said = "--workers: expected the package distributed, which is not installed."
        raise BadInput(said, remedy=INSTALL) from error
    with contextlib.ExitStack() as stack:
        if address is None:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="flashscope-", ignore_cleanup_errors=True))
            made = stack.enter_context(_local(gpu.visible(), Path(place)))
        try:
            client = stack.enter_context(Client(made if address is None else address, timeout="60s"))
        except (OSError, ValueError) as error:
            raise BadInput(f"--workers: no Dask scheduler answers at {address} ({type(error).__name__}).",
                           remedy="Is it running, and is the address as `dask scheduler` printed it?") from error
        client.wait_for_workers(1 if address else len(gpu.visible()), timeout=300)
        yield client


def _local(gpus: Sequence[str], folder: Path) -> Any:
    """A cluster of this machine: each worker a process that sees one GPU and has a temporary folder of its own."""
    from distributed import Nanny, Scheduler
    from distributed.deploy.spec import SpecCluster

    if not gpus:
        raise BadInput("--workers dask: this machine shows no GPU.",
                       remedy="Name the scheduler of a cluster that has some: --workers dask=tcp://HOST:8786.")
    workers = {}
    for number, name in enumerate(gpus):
        own = folder / str(number)
        own.mkdir()
        env = {"CUDA_VISIBLE_DEVICES": name, "TMPDIR": str(own), "PYTHONPATH": worker.environment()["PYTHONPATH"]}
        workers[number] = {"cls": Nanny, "options": {"nthreads": 1, "env": env, "local_directory": str(own),
                                                     "dashboard_address": None, "memory_limit": 0}}
    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": None, "dashboard": False,
               "allowed_failures": DEATHS - 1}
    return SpecCluster(workers=workers, scheduler={"cls": Scheduler, "options": options}, name="flashscope",
                       silence_logs="CRITICAL")


def places(client: Any, order: Order) -> list[Place]:
    """Every worker's GPU and tools. Raises BadInput where workers cannot make one profile together."""
    threads = {info["nthreads"] for info in client.scheduler_info(n_workers=-1)["workers"].values()}
    if threads != {1}:
        raise BadInput("--workers: expected workers of one thread, since each measures alone on its GPU, "
                       f"got up to {max(threads)}.", remedy="Start them with --nthreads 1 and one GPU each.")
    found: list[Place] = list(client.run(share.place, order).values())
    for what, values in (("code", {p.code for p in found} | {share.provenance.code_hash()}),
                         ("version of ncu", {p.tool.version if p.tool else None for p in found})):
        if len(values) > 1:
            raise BadInput(f"--workers: expected the same {what} everywhere, got {len(values)}.",
                           remedy="Use one checkout and one environment on every worker and here.")
    return found


def divide(configs: Sequence[RunConfig], count: int) -> list[list[RunConfig]]:
    """At most ``count`` shares of about equal work; the configurations of one shape and direction stay together."""
    groups: dict[Any, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault((config.shape, config.direction), []).append(config)
    shares: list[list[RunConfig]] = [[] for _ in range(min(count, len(groups)))]
    loads = [0.0] * len(shares)
    for group in sorted(groups.values(), key=_work, reverse=True):
        least = loads.index(min(loads))
        shares[least] += group
        loads[least] += _work(group)
    return shares


def _work(group: Sequence[RunConfig]) -> float:
    """About how long a group takes against others: something for each, more where S is large."""
    return sum(1 + config.shape.matrix_bytes / 2**30 for config in group)


def work(order: Order, configs: Sequence[RunConfig], run: str) -> tuple[str, dict[str, bytes]]:
    """On a worker: measure in a folder of its own, the GPU's ceilings once a run. Returns the GPU, and the folder's
    files by name."""
    with tempfile.TemporaryDirectory(prefix="flashscope-") as name:
        here = share.place(order)
        reporter = Reporter(_tell, len(configs), counters=bool(here.tool))
        with lock.measuring(here.gpu) if order.device == "cuda" else nullcontext():
            share.measure(order, here.tool, here.metrics, configs, Path(name), reporter, own_lock=True,
                          ceilings=(run, here.gpu) not in _known)
        _known.add((run, here.gpu))
        return here.gpu, {path.name: path.read_bytes() for path in Path(name).iterdir()}


def _tell(text: str, done: int, total: int) -> None:
    """What a worker is at, to whoever started the run."""
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(TOPIC, {"worker": str(worker.name), "text": text})


def measure(
    client: Any,
    order: Order,
    configs: Sequence[RunConfig],
    folder: Path,
    reporter: Reporter,
) -> tuple[list[Measured], list[str]]:
    """All shares, and notes on configurations that were set aside. Each share lands in a folder as it ends; those that
    an earlier run left there are not measured again."""
    from distributed import KilledWorker, as_completed

    there = {config_id for path in folder.glob("share-*/share.json")
             for config_id in json.loads(path.read_text(encoding="utf-8"))["configs"]}
    if there:
        _ended(reporter, order, [c for c in configs if c.config_id in there], "taken from the unfinished run",
               measured=False)
    left = [config for config in configs if config.config_id not in there]
    if not left:
        return _gather(order, configs, folder)
    client.subscribe_topic(TOPIC, lambda event: reporter.say(f"worker {event[1]['worker']}: {event[1]['text']}"))
    owners: dict[str, list[RunConfig]] = {}
    run = uuid.uuid4().hex

    def submit(some: list[RunConfig]) -> Any:
        future = client.submit(work, order, some, run, pure=False)
        owners[future.key] = some
        return future

    def killed(future: Any) -> list[RunConfig]:
        """Keep what a finished task gave; the configurations that ended its workers, if it did. Raises its error."""
        some, error = owners.pop(future.key), future.exception()
        if isinstance(error, KilledWorker):
            return some
        if error is not None:
            raise error if isinstance(error, FlashScopeError) else RunFailed(
                f"A worker failed: {type(error).__name__}: {error}", remedy="See the worker's own output.")
        name, files = future.result()
        _keep(folder, some, name, files)
        _ended(reporter, order, some, f"{len(some)} configurations on {name[:12]}")
        return []

    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    shares = divide(left, SHARES * workers)
    waiting, suspects = iter(shares[workers:]), []
    # No more in flight than workers: a task that only waits on a worker is blamed for its death like the one that runs.
    running = as_completed([submit(some) for some in shares[:workers]])
    try:
        for future in running:
            suspects += killed(future)
            if (some := next(waiting, None)) is not None:
                running.add(submit(some))
        for config in suspects:  # each with the cluster to itself, so that no other can be the cause
            reporter.say(f"{config.config_id}: measured alone, since its share ended {DEATHS} workers")
            (future,) = as_completed([submit([config])])
            if killed(future):
                _set_aside(folder, config)
                _ended(reporter, order, [config], f"{config.config_id} set aside: it ended {DEATHS} workers")
    finally:
        client.cancel([future for future in running.futures])
    return _gather(order, configs, folder)


def _ended(
    reporter: Reporter, order: Order, configs: Sequence[RunConfig], text: str, *, measured: bool = True
) -> None:
    counted = sum(config.config_id not in order.timed_only for config in configs) if order.counters else 0
    for kind, count in ((pace.COUNTERS, counted), (pace.TIMING, len(configs))):
        if count:
            reporter.done(kind, count, text, measured=measured)


def _keep(folder: Path, configs: Sequence[RunConfig], name: str | None, files: dict[str, bytes]) -> None:
    """A finished share as a folder; its last file is the one that says so."""
    number = 0
    while (own := folder / f"share-{number}").exists() and (own / "share.json").is_file():
        number += 1
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    for file, data in files.items():
        (own / file).write_bytes(data)
    facts = {"configs": [config.config_id for config in configs], "gpu": name}
    beside = own / "share.writing"
    beside.write_text(json.dumps(facts), encoding="utf-8")
    os.replace(beside, own / "share.json")


def _set_aside(folder: Path, config: RunConfig) -> None:
    row = {**config.key(), "parameters": parameters_text(config.parameters),
           "status": f"failed: it ended {DEATHS} workers"}
    record = json.dumps({"record": "timing", "row": row}) + "\n"
    _keep(folder, [config], None, {"timing.jsonl": record.encode()})


def _gather(order: Order, configs: Sequence[RunConfig], folder: Path) -> tuple[list[Measured], list[str]]:
    """Every share from its folder, by the same code that measures: all it asks for is there."""
    by_id = {config.config_id: config for config in configs}
    measured, notes = [], []
    silent = Reporter(lambda text, done, total: None, 0, counters=order.counters)
    for own in sorted(folder.glob("share-*"), key=lambda path: int(path.name.split("-")[1])):
        if not (own / "share.json").is_file():
            continue
        facts = json.loads((own / "share.json").read_text(encoding="utf-8"))
        some = [by_id[config_id] for config_id in facts["configs"]]
        tool = share.ncu.Ncu("ncu", "") if order.counters and facts["gpu"] else None
        measured.append(share.measure(order, tool, (), some, own, silent, gpu_name=facts["gpu"]))
        if not facts["gpu"]:
            notes.append(f"{some[0].config_id}: set aside, it ended {DEATHS} workers one after the other.")
    return measured, notes
