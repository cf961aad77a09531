"""Roles of a whole table of launches: proposed together, chosen in a link, and put into the table's columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from profiler.errors import BadInput
from profiler.roles.names import (
    ATTENTION,
    MATMUL,
    MERGE,
    ROLES,
    SCALE,
    SCORES,
    SOFTMAX,
    VALUES,
    Role,
    propose,
    short_name,
)
from profiler.spec import ELEMENT_BYTES, AttentionShape, Mask, RunConfig

NONE = "none"  # how a link says that a kernel has no role in attention
ONE_SIDED = 2.0  # times the bytes one way, against the other, that tell a matmul with an N×N operand or result


@dataclass(frozen=True, slots=True)
class Group:
    """Launches of one kernel in one range. first: number of its first launch, its name in a link; launches: how many.

    proposed: the role that names, ranges or counters suggest; None where nothing does.
    """

    first: int
    kernel: str
    range: str
    launches: int
    proposed: Role | None


def groups(launches: Any) -> list[Group]:
    """The launches table by kernel and range, in the order of first launches, each with a proposed role.

    Counters speak where names are silent: before a softmax the matmul that writes far more than it reads is the score
    matmul, after it the one that reads far more than it writes is the value matmul.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    columns = ["launch", "kernel", "range", "tensor_flops", "dram_read_bytes", "dram_write_bytes"]
    for row in launches[columns].astype(object).to_dict("records"):
        row = {k: None if v is None or v != v or str(v) == "<NA>" else v for k, v in row.items()}
        found.setdefault((row["kernel"] or "", row["range"] or ""), []).append(row)
    rows = [(kernel, said, mine, propose(kernel, said)) for (kernel, said), mine in found.items()]
    proposed = [role for *_, role in rows]
    for i, role in enumerate(proposed):
        if role is not None and role.stage == SOFTMAX and role.direction == "forward":
            for stage, order in ((SCORES, range(i - 1, -1, -1)), (VALUES, range(i + 1, len(rows)))):
                if stage not in [r.stage for r in proposed if r]:
                    at = next((j for j in order if proposed[j] is None and _matmul(rows[j][0], rows[j][2][0])), None)
                    if at is not None and _one_sided(rows[at][2][0], stage):
                        way = "writes" if stage == SCORES else "reads"
                        proposed[at] = Role(stage, "forward", "", f"matmul beside a softmax, {way} most of its bytes")
    _between(rows, proposed)
    return [Group(int(mine[0]["launch"]), short_name(kernel), said, len(mine), role)
            for (kernel, said, mine, _), role in zip(rows, proposed)]


def _between(rows: list[tuple[str, str, list[dict[str, Any]], Role | None]], proposed: list[Role | None]) -> None:
    """Between score matmul and softmax: what reads and writes about the N×N matrix, without a matmul, scales it."""
    at = {role.stage: i for i, role in reversed(list(enumerate(proposed))) if role and role.direction == "forward"}
    if SCORES not in at or SOFTMAX not in at:
        return
    matrix = rows[at[SCORES]][2][0]["dram_write_bytes"]
    for i in range(at[SCORES] + 1, at[SOFTMAX]):
        kernel, _, (row, *_), _ = rows[i]
        moved = [row["dram_read_bytes"], row["dram_write_bytes"]]
        whole = matrix and all(m is not None and matrix / ONE_SIDED <= m <= matrix * ONE_SIDED for m in moved)
        if proposed[i] is None and whole and not _matmul(kernel, row):
            proposed[i] = Role(SCALE, "forward", "", "between score matmul and softmax, moves the N×N matrix")


def _matmul(kernel: str, row: Mapping[str, Any]) -> bool:
    return bool(MATMUL.search(kernel)) or bool(row["tensor_flops"])


def _one_sided(row: Mapping[str, Any], stage: str) -> bool:
    read, written = row["dram_read_bytes"], row["dram_write_bytes"]
    if read is None or written is None:
        return False
    return bool(written >= ONE_SIDED * read if stage == SCORES else read >= ONE_SIDED * written)


def chosen(text: str | None) -> dict[int, str]:
    """Roles as a link holds them, ``0.scores_3.attention_7.none``: first launch of a group -> role, "" for none."""
    found = {}
    for part in (text or "").split("_"):
        number, _, role = part.partition(".")
        if number.isdigit() and len(number) < 10 and role in (*ROLES, NONE):
            found[int(number)] = "" if role == NONE else role
    return found


def link(roles: Mapping[int, str]) -> str:
    """The same, from roles by first launch."""
    return "_".join(f"{first}.{role or NONE}" for first, role in sorted(roles.items()))


def implementation(stages: Iterable[str], kernel: str | None = None) -> str:
    """What an implementation is called whose launches have these stages: the unfused forms, or the library's kernel."""
    stages = set(stages)
    if not stages <= {ATTENTION, MERGE}:
        return "naive" if SCALE in stages else "naive_folded"
    name = kernel or ""
    for pattern, known in _FUSED:
        if re.search(pattern, name, re.IGNORECASE):
            return known
    role = propose(name)
    return re.sub(r"\W+", "_", role.library.lower()) if role and role.library else "fused"


EXAMPLE = "B1 H16 N4096 D64 bf16 causal"
_FUSED = ((r"pytorch_flash", "sdpa_flash"), (r"cudnn", "sdpa_cudnn"), (r"FlashAttn(?:Fwd|Bwd)\w*", "fa3"),
          (r"flash_attn_?cute|FlashAttention(?:Forward|Backward)Sm\d+", "fa4"), (r"flash_(?:fwd|bwd)", "fa2"),
          (r"fmha_cutlass", "sdpa_efficient"))


def effective(group: Group, roles: Mapping[int, str]) -> str:
    """The role of a group: the one that was chosen, else the one proposed, "" for none."""
    proposed = group.proposed
    return roles.get(group.first, proposed.stage if proposed else "")


def assign(launches: Any, roles: Mapping[int, str], shape: AttentionShape | None = None) -> Any:
    """The launches table with implementation, stage and direction of those groups that ``roles`` or a proposal names.

    shape: the one attention call that all of them make together; with it they carry a whole configuration and every
    page can use them. Of a kernel that was launched several times the first launch then stands for the call.
    """
    found = groups(launches)
    unfused = [stage for g in found if (stage := effective(g, roles)) not in ("", ATTENTION, MERGE)]
    pairs = list(zip(launches["kernel"].fillna(""), launches["range"].fillna("")))
    keys: dict[tuple[str, str], dict[str, Any]] = {}
    first = {}
    for g, pair in zip(found, dict.fromkeys(pairs)):
        stage = effective(g, roles)
        direction = g.proposed.direction if g.proposed else "forward"
        fused = stage in (ATTENTION, MERGE)
        if stage and (fused or direction == "forward"):
            name = implementation([stage] if fused else unfused, pair[0])
            keys[pair], first[pair] = ({"implementation": name, "stage": stage, "direction": direction} if shape is None
                                       else RunConfig(name, shape, direction).key(stage)), g.first
    mine = [keys.get(pair) if shape is None or number == first.get(pair) else None
            for pair, number in zip(pairs, launches["launch"])]
    out = launches.copy()
    for column in next(iter(keys.values()), {}):
        values = [was if key is None else key[column] for key, was in zip(mine, launches[column].astype(object))]
        out[column] = launches[column].__class__(values, index=launches.index, dtype=launches[column].dtype)
    return out


def assigned(bundle: Any, roles: str, text: str = "") -> Any:
    """A bundle whose launches have the roles of a link (see ``chosen``), in the call that ``text`` names, if any."""
    return replace(bundle, launches=assign(bundle.launches, chosen(roles), call(text) if text else None))


def call(text: str) -> AttentionShape:
    """The attention call that ``B1 H16 N4096 D64 bf16 causal`` names: also H16/4, and Nq1 Nk4096 for N.

    Batch 1, bf16 and the full mask need not be said. Raises BadInput for anything else.
    """
    sizes: dict[str, int] = {}
    more: dict[str, str] = {}
    for word in text.split():
        match = re.fullmatch(r"(Nq|Nk|B|H|N|D)=?(\d+)(?:/(\d+))?", word, re.IGNORECASE)
        if match:
            name = match[1].lower()
            sizes[name] = int(match[2])
            if match[3]:
                sizes["hk"] = int(match[3])
        elif word.lower() in ELEMENT_BYTES:
            more["dtype"] = word.lower()
        else:
            more["mask"] = str(Mask.parse(word))
    nq, nk = sizes.get("nq", sizes.get("n")), sizes.get("nk", sizes.get("n"))
    if nq is None or nk is None or "h" not in sizes or "d" not in sizes:
        raise BadInput(f"attention call: expected heads, lengths and head size as in {EXAMPLE!r}, got {text!r:.80}.")
    return AttentionShape(sizes.get("b", 1), sizes["h"], nq, nk, sizes["d"], sizes.get("hk", 0), **more)  # type: ignore[arg-type]


def call_in(ranges: Iterable[str]) -> str:
    """The attention call that an NVTX range names in the same words; "" where none does."""
    for said in ranges:
        words = re.search(r"(?:B\d+ )?H\d+(?:/\d+)? (?:N\d+|Nq\d+ Nk\d+) D\d+(?: \w+)?(?: (?:full|causal))?", said)
        if words:
            return words[0]
    return ""
