"""What the FlashAttention paper proves about HBM accesses, as functions, and its own table as a worked check.

Source: Dao, Fu, Ermon, Rudra, Ré 2022, "FlashAttention", arXiv 2205.14135 (v2): Theorem 2, Proposition 3, Algorithms 0,
1 and Figure 2 (left). N: sequence length, d: head size, M: on-chip memory in elements. One head; element accesses.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiler.errors import BadInput


@dataclass(frozen=True, slots=True)
class Growth:
    """Orders of growth of Theorem 2 at one point (no constants: a Θ has none) and whether the theorem speaks there."""

    standard: float  # N·d + N²
    flash: float  # N²·d²/M
    applies: bool  # d ≤ M ≤ N·d

    @property
    def ratio(self) -> float:
        """standard over flash: (N·d + N²)·M / (N²·d²), near M/d² for N ≫ d."""
        return self.standard / self.flash


def theorem2(n: int, d: int, m: int) -> Growth:
    """Theorem 2: standard attention Θ(N·d + N²) HBM accesses, FlashAttention Θ(N²·d²/M), for d ≤ M ≤ N·d."""
    _positive(n, d, m)
    return Growth(n * d + n * n, n * n * d * d / m, d <= m <= n * d)


def proposition3(n: int, d: int) -> int:
    """Proposition 3: no exact algorithm has o(N²·d²/M) accesses for all M in [d, N·d].

    The witness is M = N·d, where N²·d²/M = N·d: Q, K, V must be read and O written. Returns that least number, 4·N·d.
    It says nothing of a single smaller M.
    """
    _positive(n, d, 1)
    return 4 * n * d


def standard_accesses(n: int, d: int) -> int:
    """Element accesses of Algorithm 0: read Q, K, write S; read S, write P; read P, V, write O: 4·N·d + 4·N²."""
    _positive(n, d, 1)
    return 4 * n * d + 4 * n * n


@dataclass(frozen=True, slots=True)
class Schedule:
    """Blocks of Algorithm 1 and its element accesses at HBM when nothing is cached between them."""

    block_rows: int  # Br = min(⌈M/4d⌉, d)
    block_columns: int  # Bc = ⌈M/4d⌉
    outer: int  # Tc = ⌈N/Bc⌉
    accesses: int


def algorithm1(n: int, d: int, m: int) -> Schedule:
    """Algorithm 1: K and V once; for each of Tc column blocks Q and O read, O written, ℓ and m read and written.

    Accesses = 2·N·d + Tc·(3·N·d + 4·N). With Tc = 4·N·d/M the leading term is 12·N²·d²/M: Theorem 2.
    """
    _positive(n, d, m)
    columns = min(n, -(-m // (4 * d)))
    outer = -(-n // columns)
    return Schedule(min(columns, d), columns, outer, 2 * n * d + outer * (3 * n * d + 4 * n))


def _positive(n: int, d: int, m: int) -> None:
    for name, value in (("N", n), ("d", d), ("M", m)):
        if value < 1:
            raise BadInput(f"{name}: expected a positive number, got {value!r}.")


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One column of the paper's table: as printed, and what its algorithm must do at that shape."""

    name: str
    printed_gflop: float
    printed_gb: float
    printed_ms: float
    whole_gflop: float  # matmul FLOPs of the whole batch
    least_gb: float  # what must move: every operand and result of the whole (flash) or of every step (standard) once
    schedule_gb: float  # what the paper's algorithm moves when nothing is cached between its blocks
    most_gb: float  # the same where masking and dropout are launches of their own, as in training without fusion


PAPER = {"n": 1024, "d": 64, "heads": 16, "batch": 64, "element_bytes": 2, "sram_bytes": 192 * 1024}


def paper_table() -> tuple[PaperRow, PaperRow]:
    """GPT-2 medium on an A100, forward + backward: standard 66.6 GFLOPs, 40.3 GB, 41.7 ms; Flash 75.2, 4.4, 7.3.

    Nothing is fitted. Standard: forward Algorithm 0 (4·N·d + 4·N² elements), backward Algorithm 3 (P, dO → dV;
    dO, V → dP; P, dP → dS; dS, K → dQ; dS, Q → dK: 8·N·d + 7·N²): 25.2 GB. Section 3.1 names masking of S and dropout
    of P as further passes over the matrix; each reads and writes it, forward and backward: 8·N² more, 42.4 GB. The
    printed 40.3 lie between the two. Flash does both on the chip.
    Flash least: Q, K, V in, O out; backward Q, K, V, O, dO in, dQ, dK, dV out. Its schedule: Algorithms 1 and 4 with
    M = 192 KB of 2-byte elements, the paper's figure for a multiprocessor of the A100.
    FLOPs: two matmuls forward; backward four (standard) or five (Flash, S again): 6 and 7 times 2·B·H·N²·d. The printed
    row is not the whole batch, and not one sequence either; it is shown, not explained away.
    """
    n, d, e = PAPER["n"], PAPER["d"], PAPER["element_bytes"]
    calls = PAPER["batch"] * PAPER["heads"]
    matmul = 2 * calls * n * n * d
    gigabyte = calls * e / 1e9
    standard = (standard_accesses(n, d) + 8 * n * d + 7 * n * n) * gigabyte
    forward = algorithm1(n, d, PAPER["sram_bytes"] // e)
    # Algorithm 4: K, V in, dK, dV out once; for each column block Q, O, dO, dQ read, dQ written, ℓ, m read
    backward = 4 * n * d + forward.outer * (5 * n * d + 2 * n)
    flash = (forward.accesses + backward) * gigabyte
    return (PaperRow("standard", 66.6, 40.3, 41.7, 6 * matmul / 1e9, standard, standard,
                     standard + 8 * n * n * gigabyte),
            PaperRow("FlashAttention", 75.2, 4.4, 7.3, 7 * matmul / 1e9, 12 * n * d * gigabyte, flash, flash))


def paper_ratios() -> dict[str, float]:
    """Standard over Flash: bytes, printed, by schedule, and with the steps that training adds; Flash over standard:
    FLOPs, printed and counted."""
    standard, flash = paper_table()
    return {"bytes_printed": standard.printed_gb / flash.printed_gb,
            "bytes_schedule": standard.schedule_gb / flash.schedule_gb,
            "bytes_most": standard.most_gb / flash.most_gb,
            "flops_printed": flash.printed_gflop / standard.printed_gflop,
            "flops_counted": flash.whole_gflop / standard.whole_gflop}
