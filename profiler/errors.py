"""Everything that can go wrong, said in one sentence with its remedy.

A command prints ``what``, then ``remedy``; a page shows both in one box. ``exit_code`` follows the command line's rule:
2 for input that cannot be used, 1 for a run that failed.
"""


class FlashScopeError(Exception):
    """Base of every error a user may see.

    what: one sentence: what, expected, got. remedy: what to do about it. detail: lines for whoever wants to dig
    (a program's last output, the first lines of a file); never needed to understand ``what``.
    """

    exit_code = 2

    def __init__(self, what: str, *, remedy: str = "", detail: str = ""):
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.detail = detail

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, self.remedy) if part)


class BadInput(FlashScopeError):
    """An argument, file or parameter that cannot be used."""


class UnsupportedFile(BadInput):
    """A file that is not something Nsight Compute writes, nor a bundle."""


class DamagedFile(BadInput):
    """A file of a known form that cannot be read to its end."""


class NoLaunches(BadInput):
    """A readable file that holds no profiled kernel launch."""


class NewerSchema(BadInput):
    """A bundle written by a later FlashScope."""


class PrivateData(BadInput):
    """Data about to be written that names a user, a host or a private path."""


class RunFailed(FlashScopeError):
    """A profiling run that did not give what was asked."""

    exit_code = 1


class CountersNotPermitted(RunFailed):
    """ERR_NVGPUCTRPERM: the driver keeps the counters for administrators."""


class NothingProfiled(RunFailed):
    """ncu ran, but no launch matched the ranges."""


class NoProgress(RunFailed):
    """The profiled process stopped making progress and was ended."""


class NcuMissing(RunFailed):
    """Nsight Compute's command line was not found."""


class NcuTooOld(RunFailed):
    """Every ncu found is older than what FlashScope can ask."""


class NcuFailed(RunFailed):
    """ncu ended with an error that has no class of its own."""


class WorkerFailed(RunFailed):
    """The profiled Python process itself failed; its last lines are in ``detail``."""


class CountersBusy(NcuFailed):
    """Another tool holds the counters: DCGM, or another profiler."""


class NcuLocked(NcuFailed):
    """ncu's lock file in the temporary folder belongs to another user or run."""


class MigWithoutCounters(NcuFailed):
    """A MIG slice that shares the counters with others."""


class UnsupportedGpu(NcuFailed):
    """A GPU that this ncu cannot profile."""


class DriverMismatch(NcuFailed):
    """ncu and the driver do not fit each other, or ncu cannot load the driver's profiling library."""


class UnknownMetric(NcuFailed):
    """A metric that this ncu does not have."""


class ReplayOutOfMemory(NcuFailed):
    """No room to save and restore device memory between the passes of kernel replay."""


class WrongPython(WorkerFailed):
    """The profiled process ran a Python without the packages, as sudo's own PATH gives."""


class GpuInUse(RunFailed):
    """Another FlashScope run measures on this GPU."""
