"""What NVIDIA's data sheets and architecture papers say of a GPU, found by the exact name that a report gives.

Dense peaks only, by operand type and accumulator; a sparse figure of a data sheet is halved. Where a sheet's figure is
(operations a cycle and SM) × SMs × boost clock it is computed so from the architecture paper's rate; where it is not
(H100 is rated below its highest clock, H20 is cut) the sheet's own figure stands. A GPU that is not here, a laptop or
MIG part of one that is, or one with another number of SMs has no data-sheet roof: another GPU's peak is never lent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiler.spec import DeviceSpec

Peaks = Mapping[tuple[str, str], float]  # (operand, accumulator) -> dense operations a second
TERA, GIGA, MEGA, MEBI = 1e12, 1e9, 1e6, 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """name: as reports write it; boost_hz: boost clock; dram_bytes_per_s, l2_size_bytes: of the sheet, None where it
    has none.

    peaks: dense operations a second by (operand, accumulator): FLOP/s, or op/s for int8. fp32_flops_per_s: CUDA cores.
    by_clock: whether the peaks are so many operations a cycle × boost clock; if not, they are the sheet's own figures.
    """

    name: str
    cc: str
    sm_count: int
    boost_hz: float
    dram_bytes_per_s: float
    l2_size_bytes: int | None
    peaks: Peaks = field(default_factory=dict)
    fp32_flops_per_s: float | None = None
    source: str = ""
    by_clock: bool = False

    def peak(self, operand: str, accumulator: str = "fp32") -> float | None:
        """Dense peak for the operand type: with this accumulator, else the only one there is; None when not known."""
        if (operand, accumulator) in self.peaks:
            return self.peaks[operand, accumulator]
        only = [value for (kind, _), value in self.peaks.items() if kind == operand]
        return only[0] if len(only) == 1 else None

    def peak_at(self, hz: float, operand: str, accumulator: str = "fp32") -> float | None:
        """The dense peak at another clock than boost; None where the architecture's rate is not what the sheet says."""
        peak = self.peak(operand, accumulator)
        return peak * hz / self.boost_hz if peak and self.by_clock else None

    def spec(self, operand: str = "bf16") -> DeviceSpec:
        """The same for the models, with the data sheet as its source."""
        return DeviceSpec(self.name, self.cc, self.sm_count, self.l2_size_bytes, self.boost_hz, self.dram_bytes_per_s,
                          None, self.peak(operand), self.source)


# Dense operations a cycle and SM, a multiply-add counts 2, from the architecture papers.
def _rates(half: int, single: int, *, bf16: bool, tf32: int = 0, fp8: tuple[int, int] = (0, 0), fp4: int = 0,
           int8: int = 0, fp64: int = 0) -> dict[tuple[str, str], int]:
    """half, single: fp16 operands accumulated in fp16 and fp32; fp8: the same for fp8."""
    rates = {("fp16", "fp16"): half, ("fp16", "fp32"): single, ("bf16", "fp32"): single if bf16 else 0,
             ("tf32", "fp32"): tf32, ("fp8", "fp16"): fp8[0], ("fp8", "fp32"): fp8[1], ("fp4", "fp32"): fp4,
             ("int8", "int32"): int8, ("fp64", "fp64"): fp64}
    return {key: rate for key, rate in rates.items() if rate}


VOLTA = _rates(1024, 1024, bf16=False)
TURING_PRO = _rates(1024, 1024, bf16=False, int8=2048)
TURING_GEFORCE = _rates(1024, 512, bf16=False, int8=2048)
GA100 = _rates(2048, 2048, bf16=True, tf32=1024, int8=4096, fp64=128)
AMPERE_PRO = _rates(1024, 1024, bf16=True, tf32=512, int8=2048)
AMPERE_GEFORCE = _rates(1024, 512, bf16=True, tf32=256, int8=2048)
ORIN = _rates(2048, 2048, bf16=True, tf32=1024, int8=4096)
ADA_PRO = _rates(1024, 1024, bf16=True, tf32=512, fp8=(2048, 2048), int8=2048)
ADA_GEFORCE = _rates(1024, 512, bf16=True, tf32=256, fp8=(2048, 1024), int8=2048)
BLACKWELL_PRO = _rates(1024, 1024, bf16=True, tf32=512, fp8=(2048, 2048), fp4=4096, int8=2048)
BLACKWELL_GEFORCE = _rates(1024, 512, bf16=True, tf32=256, fp8=(2048, 1024), fp4=4096, int8=2048)
FP32_RATE = {"6.0": 128, "7.0": 128, "7.2": 128, "7.5": 128, "8.0": 128}  # after that 256


def _sheet(fp16: float, tf32: float = 0, fp8: float = 0, fp4: float = 0, int8: float = 0, fp64: float = 0) -> Peaks:
    """Peaks in tera-operations a second where fp16 and bf16 run at one rate whatever the accumulator."""
    given = {("fp16", "fp32"): fp16, ("fp16", "fp16"): fp16, ("bf16", "fp32"): fp16, ("tf32", "fp32"): tf32,
             ("fp8", "fp32"): fp8,
             ("fp4", "fp32"): fp4, ("int8", "int32"): int8, ("fp64", "fp64"): fp64}
    return {key: value * TERA for key, value in given.items() if value}


HOPPER_SXM = _sheet(989.4, 494.7, 1978.9, 0, 1978.9, 66.9)
HOPPER_NVL = _sheet(835.5, 417.7, 1671, 0, 1671, 60)
B200_HGX = _sheet(2250, 1125, 4500, 9000, 4500, 37)
GB200 = _sheet(2500, 1250, 5000, 10000, 5000, 40)

# name | cc | SMs | boost MHz | GB/s | L2 MiB (0: not given) | rates or peaks | fp32 TFLOP/s (None: computed) | source
_ROWS: tuple[tuple[str, str, int, float, float, float, Mapping[tuple[str, str], float], float | None, str], ...] = (
    ("Tesla P100-PCIE-16GB", "6.0", 56, 1303, 732, 4, {}, 9.3, "Tesla P100 data sheet"),
    ("Tesla P100-SXM2-16GB", "6.0", 56, 1480, 732, 4, {}, 10.6, "Tesla P100 data sheet"),
    ("Tesla V100-SXM2-16GB", "7.0", 80, 1530, 900, 6, VOLTA, None, "V100 data sheet"),
    ("Tesla V100-SXM2-32GB", "7.0", 80, 1530, 900, 6, VOLTA, None, "V100 data sheet"),
    ("Tesla V100-SXM3-32GB", "7.0", 80, 1597, 981, 6, VOLTA, None, "DGX-2 data sheet"),
    ("Tesla V100-PCIE-16GB", "7.0", 80, 1380, 900, 6, VOLTA, None, "V100 data sheet"),
    ("Tesla V100-PCIE-32GB", "7.0", 80, 1380, 900, 6, VOLTA, None, "V100 data sheet"),
    ("Tesla V100S-PCIE-32GB", "7.0", 80, 1597, 1134, 6, VOLTA, None, "V100S data sheet"),
    ("TITAN V", "7.0", 80, 1455, 653, 4.5, VOLTA, None, "TITAN V specifications"),
    ("Xavier", "7.2", 8, 1377, 137, 0.5, VOLTA, None, "Jetson AGX Xavier data sheet"),
    ("Tesla T4", "7.5", 40, 1590, 320, 4, TURING_PRO, None, "T4 data sheet; Turing paper"),
    ("Quadro RTX 6000", "7.5", 72, 1770, 672, 6, TURING_PRO, None, "Turing paper"),
    ("Quadro RTX 8000", "7.5", 72, 1770, 672, 6, TURING_PRO, None, "Quadro RTX 8000 data sheet"),
    ("TITAN RTX", "7.5", 72, 1770, 672, 6, TURING_PRO, None, "TITAN RTX specifications"),
    ("GeForce RTX 2060", "7.5", 30, 1680, 336, 3, TURING_GEFORCE, None, "GeForce specifications; Turing paper"),
    ("GeForce RTX 2060 SUPER", "7.5", 34, 1650, 448, 4, TURING_GEFORCE, None, "GeForce specifications; Turing paper"),
    ("GeForce RTX 2070", "7.5", 36, 1620, 448, 4, TURING_GEFORCE, None, "Turing paper"),
    ("GeForce RTX 2070 SUPER", "7.5", 40, 1770, 448, 4, TURING_GEFORCE, None, "GeForce specifications; Turing paper"),
    ("GeForce RTX 2080", "7.5", 46, 1710, 448, 4, TURING_GEFORCE, None, "Turing paper"),
    ("GeForce RTX 2080 SUPER", "7.5", 48, 1815, 496, 4, TURING_GEFORCE, None, "GeForce specifications; Turing paper"),
    ("GeForce RTX 2080 Ti", "7.5", 68, 1545, 616, 5.5, TURING_GEFORCE, None, "Turing paper"),
    ("A100-SXM4-40GB", "8.0", 108, 1410, 1555, 40, GA100, None, "A100 data sheet"),
    ("A100-SXM4-80GB", "8.0", 108, 1410, 2039, 40, GA100, None, "A100 data sheet"),
    ("A100-PCIE-40GB", "8.0", 108, 1410, 1555, 40, GA100, None, "A100 data sheet"),
    ("A100 80GB PCIe", "8.0", 108, 1410, 1935, 40, GA100, None, "A100 data sheet"),
    ("A800-SXM4-80GB", "8.0", 108, 1410, 2039, 40, GA100, None, "A800 data sheet"),
    ("A800 80GB PCIe", "8.0", 108, 1410, 1935, 40, GA100, None, "A800 data sheet"),
    ("A30", "8.0", 56, 1440, 933, 24, GA100, None, "A30 data sheet"),
    ("A40", "8.6", 84, 1740, 696, 6, AMPERE_PRO, None, "A40 data sheet"),
    ("A10", "8.6", 72, 1695, 600, 6, AMPERE_PRO, None, "A10 data sheet"),
    ("A10G", "8.6", 80, 1710, 600, 6, _sheet(70, 35, int8=140), 35, "A10G data sheet"),
    ("A2", "8.6", 10, 1770, 200, 2, AMPERE_PRO, None, "A2 data sheet"),
    ("RTX A2000", "8.6", 26, 1200, 288, 3, AMPERE_PRO, None, "RTX A2000 data sheet"),
    ("RTX A4500", "8.6", 56, 1650, 640, 6, AMPERE_PRO, None, "RTX A4500 data sheet"),
    ("RTX A4000", "8.6", 48, 1560, 448, 4, AMPERE_PRO, None, "RTX A4000 data sheet"),
    ("RTX A5000", "8.6", 64, 1695, 768, 6, AMPERE_PRO, None, "RTX A5000 data sheet"),
    ("RTX A6000", "8.6", 84, 1800, 768, 6, AMPERE_PRO, None, "RTX A6000 data sheet"),
    ("GeForce RTX 3050", "8.6", 20, 1777, 224, 2, AMPERE_GEFORCE, None, "GeForce specifications; GA102 paper"),
    ("GeForce RTX 3060", "8.6", 28, 1777, 360, 3, AMPERE_GEFORCE, None, "GeForce specifications; GA102 paper"),
    ("GeForce RTX 3060 Ti", "8.6", 38, 1665, 448, 4, AMPERE_GEFORCE, None, "GeForce specifications; GA102 paper"),
    ("GeForce RTX 3070", "8.6", 46, 1725, 448, 4, AMPERE_GEFORCE, None, "GA102 paper"),
    ("GeForce RTX 3070 Ti", "8.6", 48, 1770, 608, 4, AMPERE_GEFORCE, None, "GeForce specifications; GA102 paper"),
    ("GeForce RTX 3080", "8.6", 68, 1710, 760, 5, AMPERE_GEFORCE, None, "GA102 paper"),
    ("GeForce RTX 3080 Ti", "8.6", 80, 1665, 912, 6, AMPERE_GEFORCE, None, "GeForce specifications; GA102 paper"),
    ("GeForce RTX 3090", "8.6", 82, 1695, 936, 6, AMPERE_GEFORCE, None, "GA102 paper"),
    ("GeForce RTX 3090 Ti", "8.6", 84, 1860, 1008, 6, AMPERE_GEFORCE, None, "GeForce specifications; GA102 paper"),
    ("Orin", "8.7", 16, 1300, 204.8, 4, ORIN, None, "Jetson AGX Orin technical brief"),
    ("L4", "8.9", 58, 2040, 300, 48, ADA_PRO, None, "L4 data sheet"),
    ("L40", "8.9", 142, 2490, 864, 96, _sheet(181.05, 90.5, 362, int8=362), 90.5, "L40 data sheet"),
    ("L40S", "8.9", 142, 2520, 864, 96, ADA_PRO, None, "L40S data sheet"),
    ("RTX 4000 Ada Generation", "8.9", 48, 2175, 360, 48, ADA_PRO, None, "RTX 4000 Ada data sheet"),
    ("RTX 4500 Ada Generation", "8.9", 60, 2580, 432, 48, ADA_PRO, None, "RTX 4500 Ada data sheet"),
    ("RTX 5000 Ada Generation", "8.9", 100, 2550, 576, 72, ADA_PRO, None, "RTX 5000 Ada data sheet"),
    ("RTX 6000 Ada Generation", "8.9", 142, 2505, 960, 96, ADA_PRO, None, "RTX 6000 Ada data sheet"),
    ("GeForce RTX 4060", "8.9", 24, 2460, 272, 24, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("GeForce RTX 4060 Ti", "8.9", 34, 2535, 288, 32, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("GeForce RTX 4070", "8.9", 46, 2475, 504, 36, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("GeForce RTX 4070 SUPER", "8.9", 56, 2475, 504, 48, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("GeForce RTX 4070 Ti", "8.9", 60, 2610, 504, 48, ADA_GEFORCE, None, "Ada paper"),
    ("GeForce RTX 4070 Ti SUPER", "8.9", 66, 2610, 672, 48, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("GeForce RTX 4080", "8.9", 76, 2505, 717, 64, ADA_GEFORCE, None, "Ada paper"),
    ("GeForce RTX 4080 SUPER", "8.9", 80, 2550, 736, 64, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("GeForce RTX 4090", "8.9", 128, 2520, 1008, 72, ADA_GEFORCE, None, "Ada paper"),
    ("GeForce RTX 4090 D", "8.9", 114, 2520, 1008, 72, ADA_GEFORCE, None, "GeForce specifications; Ada paper"),
    ("H100 80GB HBM3", "9.0", 132, 1980, 3352, 50, HOPPER_SXM, 66.9, "H100 data sheet (SXM)"),
    ("H100 PCIe", "9.0", 114, 1755, 2039, 50, _sheet(756, 378, 1513, 0, 1513, 51), 51, "H100 data sheet (PCIe)"),
    ("H100 NVL", "9.0", 132, 1785, 3938, 50, HOPPER_NVL, 60, "H100 data sheet (NVL)"),
    ("H800", "9.0", 132, 1980, 3352, 50, _sheet(989.4, 494.7, 1978.9, 0, 1978.9), 66.9, "H800 data sheet"),
    ("H20", "9.0", 78, 1980, 4000, 60, _sheet(148, 74, 296, 0, 296), 44, "H20 data sheet"),
    ("H200", "9.0", 132, 1980, 4800, 0, HOPPER_SXM, 66.9, "H200 data sheet (SXM)"),
    ("H200 NVL", "9.0", 132, 1785, 4800, 0, HOPPER_NVL, 60, "H200 data sheet (NVL)"),
    ("GH200 480GB", "9.0", 132, 1980, 4000, 0, HOPPER_SXM, 67, "GH200 data sheet (HBM3)"),
    ("B200", "10.0", 148, 1965, 8000, 0, B200_HGX, 75, "HGX B200 data sheet"),
    ("GB200", "10.0", 152, 2062, 8000, 0, GB200, 80, "GB200 data sheet"),
    ("B300 SXM6 AC", "10.3", 148, 1920, 8000, 0, _sheet(2250, 1125, 4500, 13500, 0, 1.2), 75, "HGX B300 data sheet"),
    ("GB300", "10.3", 152, 2032, 8000, 0, _sheet(2500, 1250, 5000, 15000, 0, 1.3), 80, "GB300 data sheet"),
    ("GeForce RTX 5060 Ti", "12.0", 36, 2572, 448, 32, BLACKWELL_GEFORCE, None,
     "GeForce specifications; RTX Blackwell paper"),
    ("GeForce RTX 5070", "12.0", 48, 2512, 672, 48, BLACKWELL_GEFORCE, None, "RTX Blackwell paper"),
    ("GeForce RTX 5070 Ti", "12.0", 70, 2452, 896, 48, BLACKWELL_GEFORCE, None, "RTX Blackwell paper"),
    ("GeForce RTX 5080", "12.0", 84, 2617, 960, 64, BLACKWELL_GEFORCE, None, "RTX Blackwell paper"),
    ("GeForce RTX 5090", "12.0", 170, 2407, 1792, 96, BLACKWELL_GEFORCE, None, "RTX Blackwell paper"),
    ("RTX PRO 6000 Blackwell Workstation Edition", "12.0", 188, 2617, 1792, 128, BLACKWELL_PRO, None,
     "RTX PRO Blackwell paper"),
)


def _device(row: tuple[str, str, int, float, float, float, Mapping[tuple[str, str], float], float | None,
                       str]) -> Device:
    name, cc, sms, mhz, gigabytes, l2, peaks, fp32, source = row
    a_second = sms * mhz * MEGA
    dense = {key: value if value > GIGA else value * a_second for key, value in peaks.items()}
    return Device(name, cc, sms, mhz * MEGA, gigabytes * GIGA, int(l2 * MEBI) or None, dense,
                  fp32 * TERA if fp32 else FP32_RATE.get(cc, 256) * a_second, source,
                  all(value < GIGA for value in peaks.values()))


DEVICES: tuple[Device, ...] = tuple(map(_device, _ROWS))
_BY_NAME = {device.name.casefold(): device for device in DEVICES}


def find(name: str | None, cc: str | None = None, sm_count: float | None = None) -> Device | None:
    """The GPU called exactly ``name`` in a report (with or without "NVIDIA "); None when it is not known.

    cc, sm_count: of the report, where it has them; a GPU that differs in either is another one, and None.
    """
    key = " ".join((name or "").split()).casefold().removeprefix("nvidia ")
    device = _BY_NAME.get(key)
    if device is None or (cc and cc != device.cc) or (sm_count and int(sm_count) != device.sm_count):
        return None
    return device
