"""A run spread over the GPUs of a Dask cluster: one GPU to a worker, one share to a task. Dask schedules and retries.

All configurations of one shape stay in one share, so that what is compared was measured on one GPU. Shares take about
equally long: all workers end together. A worker that dies is replaced and its share measured elsewhere; a share that
ends several workers is halved again and again, and the configuration that does so alone is set aside and named.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from profiler.collect import gpu, lock, share, worker
from profiler.collect.progress import Reporter
from profiler.collect.share import Measured, Order, Place
from profiler.errors import BadInput, FlashScopeError, RunFailed
from profiler.spec import RunConfig, parameters_text

SHARE = 80  # configurations a share at most: what starts the two processes is paid once, what a death loses is bounded
DEATHS = 2  # workers that a share may end before it is taken apart
UNFUSED = {"naive": (4, 7), "naive_folded": (3, 7), "sdpa_math": (14, 20)}  # launches of a full forward and backward
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
            with _uninterrupted():
                cluster = _local(gpu.visible(), Path(place))
            made = stack.enter_context(cluster)
        try:
            client = stack.enter_context(Client(made if address is None else address, timeout="60s"))
        except (OSError, ValueError) as error:
            raise BadInput(f"--workers: no Dask scheduler answers at {address} ({type(error).__name__}).",
                           remedy="Is it running, and is the address as `dask scheduler` printed it?") from error
        client.wait_for_workers(1 if address else len(gpu.visible()), timeout=300)
        yield client


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A request to end that comes meanwhile is heard afterwards: half a cluster cannot be closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[Any] = []
    before = {number: signal.signal(number, lambda *request: heard.append(request))
              for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        raise KeyboardInterrupt


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
                                                     "dashboard_address": None, "memory_limit": 0,
                                                     "silence_logs": logging.CRITICAL}}  # a task's error is ours to say
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


def divide(configs: Sequence[RunConfig], workers: int, timed_only: Collection[str] = ()) -> list[list[RunConfig]]:
    """Shares of about equal time, at most SHARE configurations each on average and as many for every worker; the
    configurations of one shape and direction stay together."""
    groups: dict[Any, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault((config.shape, config.direction), []).append(config)
    rounds = math.ceil(len(configs) / SHARE / workers)
    shares: list[list[RunConfig]] = [[] for _ in range(min(workers * rounds, len(groups)))]
    loads = [0.0] * len(shares)
    lasting = [(sum(seconds(config, counted=config.config_id not in timed_only) for config in group), group)
               for group in groups.values()]
    for lasts, group in sorted(lasting, key=lambda pair: pair[0], reverse=True):
        least = loads.index(min(loads))
        shares[least] += group
        loads[least] += lasts
    return shares


def halves(configs: list[RunConfig]) -> list[list[RunConfig]]:
    """What cannot be halved stays whole; nothing stays nothing."""
    middle = len(configs) // 2
    return [half for half in (configs[:middle], configs[middle:]) if half]


def seconds(config: RunConfig, *, counted: bool) -> float:
    """About how long a configuration takes against others, as runs of the scaling suite took on H200s: a fifth of a
    second timed; counted, as much again and a quarter a launch, more where the launches go over all of S."""
    if not counted:
        return 0.2
    masked = config.shape.mask != "full"
    backward = config.direction == "backward"
    matrix, launches = 0.0, 3 if backward else 1
    if config.implementation in UNFUSED:
        launches = UNFUSED[config.implementation][backward]
        matrix = 0.06 * launches
        if masked and config.implementation != "naive_folded":
            launches, matrix = launches + 1, matrix + 0.46
    return 0.4 + 0.25 * launches + matrix * config.shape.matrix_bytes / 2**30


def work(order: Order, configs: Sequence[RunConfig], run: str) -> tuple[str, dict[str, bytes]]:
    """On a worker: measure in a folder of its own, the GPU's ceilings once a run. Returns the GPU, and the folder's
    files by name."""
    with tempfile.TemporaryDirectory(prefix="flashscope-") as name:
        here = share.place(order)
        counted = [config for config in configs if config.config_id not in order.timed_only]
        reporter = Reporter(partial(_tell, here.gpu[:12]), len(configs), counters=bool(here.tool), counted=counted)
        with lock.measuring(here.gpu) if order.device == "cuda" else nullcontext():
            share.measure(order, here.tool, here.metrics, configs, Path(name), reporter, own_lock=True,
                          ceilings=(run, here.gpu) not in _known, chunk=len(configs))
        reporter.end(None)
        _known.add((run, here.gpu))
        return here.gpu, {path.name: path.read_bytes() for path in Path(name).iterdir()}


def _tell(name: str, text: str, done: int, total: int) -> None:
    """What a worker is at on GPU ``name``, to whoever started the run."""
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(TOPIC, {"share": worker.get_current_task(), "text": f"{name}: {text}", "done": done})


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
        _ended(reporter, order, [c for c in configs if c.config_id in there], "taken from the unfinished run")
    left = [config for config in configs if config.config_id not in there]
    if not left:
        return _gather(order, configs, folder)
    owners: dict[str, list[RunConfig]] = {}  # of each task in flight
    under_way: dict[str, int] = {}  # what each of them has done
    run = uuid.uuid4().hex

    def heard(event: tuple[Any, dict[str, Any]]) -> None:
        under_way[event[1]["share"]] = event[1]["done"]
        reporter.say(event[1]["text"])

    reporter.beyond = lambda: sum(under_way.get(share, 0) for share in list(owners))
    client.subscribe_topic(TOPIC, heard)

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
    shares = divide(left, workers, order.timed_only)
    waiting = iter(shares[workers:])
    suspects: list[list[RunConfig]] = []
    # No more in flight than workers: a task that only waits on a worker is blamed for its death like the one that runs.
    running = as_completed([submit(some) for some in shares[:workers]])
    try:
        for future in running:
            suspects += halves(killed(future))
            if (waits := next(waiting, None)) is not None:
                running.add(submit(waits))
        while suspects:  # each with the cluster to itself, so that no other can be the cause
            some = suspects.pop()
            what = some[0].config_id if len(some) == 1 else f"{len(some)} configurations"
            reporter.say(f"{what}: measured with the cluster to themselves, since their share ended {DEATHS} workers")
            (future,) = as_completed([submit(some)])
            if not killed(future):
                continue
            if len(some) > 1:
                suspects += halves(some)
            else:
                _set_aside(folder, some[0])
                _ended(reporter, order, some, f"{some[0].config_id} set aside: it ended {DEATHS} workers")
    finally:
        client.cancel([future for future in running.futures])
    return _gather(order, configs, folder)


def _ended(reporter: Reporter, order: Order, configs: Sequence[RunConfig], text: str) -> None:
    counted = sum(config.config_id not in order.timed_only for config in configs) if order.counters else 0
    reporter.elsewhere(counted + len(configs), text)


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
        measured.append(share.measure(order, tool, (), some, own, silent, gpu_name=facts["gpu"], chunk=len(some)))
        if not facts["gpu"]:
            notes.append(f"{some[0].config_id}: set aside, it ended {DEATHS} workers one after the other.")
    return measured, notes
