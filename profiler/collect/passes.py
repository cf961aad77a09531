"""The two passes of a run, each able to go on where it stopped: counters in chunks under ncu, timings without it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.collect import failures, ncu, pace, watch, worker
from profiler.collect.progress import Follower, Reporter, culprit
from profiler.errors import BadInput, NcuFailed, NcuLocked, NoProgress, NothingProfiled, RunFailed, WorkerFailed
from profiler.spec import RunConfig

QUIET_S = 180.0


class Partial:
    """The folder ``OUT.partial`` that holds finished work until the bundle is written.

    Entered with ``resume`` it keeps what an earlier run of the same settings finished; otherwise it starts empty,
    unless finished work would be lost. Left after a failure it stays if there is something to resume from.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], *, resume: bool):
        self.folder = out.with_name(out.name + ".partial")
        self._settings = json.loads(json.dumps(settings))
        self._resume = resume
        self.finished = False

    def _worth_keeping(self) -> bool:
        shares = any(self.folder.glob("share-*/share.json"))
        return shares or any(self.folder.glob("*.done")) or bool(
            worker.of(worker.read_records(self.folder / "timing.jsonl"), "timing")
        )

    def __enter__(self) -> Partial:
        note = self.folder / "settings.json"
        if self.folder.exists() and self._worth_keeping():
            if not self._resume:
                raise BadInput(
                    f"{self.folder.name}: an unfinished run is there.",
                    remedy="Go on with it: --resume. Or remove the folder to start afresh.",
                )
            earlier = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
            different = sorted(k for k in self._settings if earlier.get(k) != self._settings[k])
            if different:
                raise BadInput(
                    f"--resume: the unfinished run had other settings ({', '.join(different)}).",
                    remedy=f"Remove {self.folder.name} to start afresh.",
                )
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(self._settings), encoding="utf-8")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.finished or not self._worth_keeping():
            shutil.rmtree(self.folder, ignore_errors=True)
        elif isinstance(error, RunFailed):
            error.remedy = f"{error.remedy}\nFinished configurations are kept: --resume goes on from them.".strip()


def own_error(records: Sequence[Mapping[str, Any]]) -> WorkerFailed | None:
    """What the workload itself refused before its first configuration (no GPU, for one), in its own words."""
    found = worker.of(records, "error")
    if not found or worker.of(records, "start"):
        return None
    return WorkerFailed(found[-1]["what"], remedy=found[-1]["remedy"])


class Chunk:
    """Some configurations, one ncu process, one report."""

    def __init__(
        self,
        folder: Path,
        number: int,
        configs: Sequence[RunConfig],
        *,
        device: str,
        seed: int,
        own_lock: bool = False,
    ):
        self.configs, self._device, self._seed = list(configs), device, seed
        self.report = folder / f"chunk-{number}.ncu-rep"
        self._records = folder / f"chunk-{number}.jsonl"
        self._done = folder / f"chunk-{number}.done"
        self.command, self.passes = "", 0
        self.unknown: list[str] = []  # metrics that this ncu does not have
        self._told: set[str] = set()  # configurations reported as done; what a crash repeats is not reported again
        self._own_lock = own_lock  # ncu's lock file in a folder of this run's own

    def records(self) -> list[dict[str, Any]]:
        return worker.read_records(self._records)

    def collect(self, tool: ncu.Ncu, metrics: Sequence[str], reporter: Reporter, quiet_s: float) -> None:
        """Profile the chunk, or take it as an earlier run left it. What kills the process is set aside."""
        if self._done.is_file():
            facts = json.loads(self._done.read_text(encoding="utf-8"))
            self.command, self.passes, self.unknown = facts["command"], facts["passes"], facts["unknown"]
            reporter.counted(self.configs, "taken from the unfinished run", measured=False)
            return
        left = list(self.configs)
        aside: list[dict[str, Any]] = []
        while True:
            with tempfile.TemporaryDirectory(prefix="flashscope-") as name:
                folder = Path(name)
                records = folder / "result.jsonl"
                error = self._attempt(folder, left, tool, metrics, reporter, quiet_s)
                found = worker.read_records(records)
                if isinstance(error, NothingProfiled):
                    error = failures.nothing_ran(worker.of(found, "counters")) or error
                guilty = culprit(found, "counters") if isinstance(error, WorkerFailed) else None
                if error is not None and any(r.get("sticky") for r in found):
                    guilty = next(r["config_id"] for r in found if r.get("sticky"))
                if error is None:
                    shutil.move(folder / "report.ncu-rep", self.report)
                    found += aside
                    rest = [config for config in self.configs if config.config_id not in self._told]
                    reporter.counted(rest, f"{len(aside)} set aside")
                    self._records.write_text("".join(json.dumps(r) + "\n" for r in found), encoding="utf-8")
                    self._done.write_text(
                        json.dumps({"command": self.command, "passes": self.passes, "unknown": self.unknown}),
                        encoding="utf-8",
                    )
                    return
            if isinstance(error, NcuLocked) and not self._own_lock:
                self._own_lock = True
                continue
            unknown = failures.unknown_metrics(error.detail, metrics)
            if unknown:  # every ncu has its own list: what it lacks is left out, said, and null in the table
                self.unknown += unknown
                metrics = [name for name in metrics if name not in unknown]
                continue
            left = [config for config in left if config.config_id != guilty]
            if guilty is None or not left:
                raise error
            aside.append({"record": "counters", "config_id": guilty, "stages": [], "status": f"failed: {error.what}"})

    def _attempt(
        self,
        folder: Path,
        configs: Sequence[RunConfig],
        tool: ncu.Ncu,
        metrics: Sequence[str],
        reporter: Reporter,
        quiet_s: float,
    ) -> RunFailed | None:
        plan, records, report = folder / "plan.json", folder / "result.jsonl", folder / "report.ncu-rep"
        worker.write_plan(plan, "counters", configs, device=self._device, seed=self._seed)
        arguments = ncu.command(
            tool.path,
            worker.command(plan, records),
            export=Path(report.name),
            metrics=metrics,
            version=tool.version,
        )
        self.command = ncu.public_command(arguments)
        counted = Follower(records, "counters", reporter, self._told, configs)
        seen = watch.follow(
            arguments,
            cwd=folder,
            env={**worker.environment(), **({"TMPDIR": str(folder)} if self._own_lock else {})},
            quiet_s=quiet_s,
            moved=counted.moved,
            on_line=lambda line, seen: counted.kernel(seen),
        )
        counted.moved()
        self.passes = max(self.passes, seen.passes)
        said = own_error(worker.read_records(records))
        if said:
            return said
        error = failures.diagnose(seen)
        if error is None and not report.is_file():
            return NcuFailed(
                "ncu ended well but wrote no report.", remedy="Its last lines are below.", detail=seen.text
            )
        return error


def time_all(
    configs: Sequence[RunConfig],
    folder: Path,
    *,
    device: str,
    seed: int,
    quiet_s: float,
    reporter: Reporter,
    ceilings: bool = True,
) -> list[dict[str, Any]]:
    """Records of the timing pass for every configuration; one whose process died or hung gets a row that says so.
    ceilings: whether what this GPU reaches at best is measured too."""
    path, told = folder / "timing.jsonl", set[str]()
    while True:
        records = worker.read_records(path)
        ended = {record["row"]["config_id"] for record in worker.of(records, "timing")}
        left = [config for config in configs if config.config_id not in ended]
        if ended - told:
            reporter.done(pace.TIMING, len(ended - told), "taken from the unfinished run", measured=False)
            told |= ended
        if not left:
            return records
        with tempfile.TemporaryDirectory(prefix="flashscope-") as name:
            plan = Path(name) / "plan.json"
            known = not ceilings or bool(worker.of(records, "ceiling"))
            worker.write_plan(plan, "timing", left, device=device, seed=seed, ceilings=not known)
            arguments = worker.command(plan, path)
            arguments[-1] = str(path.resolve())
            before, follower = len(records), Follower(path, "timing", reporter, told, configs)
            try:
                seen = watch.follow(
                    arguments,
                    cwd=Path(name),
                    env=worker.environment(),
                    quiet_s=quiet_s,
                    moved=follower.moved,
                )
                failure = f"the process ended with code {seen.code}" + (f": {seen.lines[-1]}" if seen.lines else "")
                text = seen.text
            except NoProgress as error:
                failure, text = f"no progress for {quiet_s:.0f} s", error.detail
            follower.moved()
        records = worker.read_records(path)
        if len(worker.of(records, "end")) > len(worker.of(records[:before], "end")):
            return records
        if said := own_error(records[before:]):
            raise said
        guilty = culprit(records[before:], "timing")
        config = next((c for c in left if c.config_id == guilty), None)
        if config is None and worker.of(records[before:], "timing"):
            continue  # it lost its CUDA context, said so in that configuration's row, and the others go on without it
        if config is None:
            raise failures.worker_failure(
                f"The timing process failed: {failure.rstrip('.')}.",
                detail=text,
                remedy="`python -m profiler doctor` says whether PyTorch, Triton and the GPU fit together.",
            )
        row = {**config.key(), "parameters": json.dumps(dict(config.parameters)), "status": f"failed: {failure}"[:300]}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"record": "timing", "row": row}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        told.add(config.config_id)
        reporter.done(pace.TIMING, 1, f"{guilty} set aside: {failure}"[:200])
