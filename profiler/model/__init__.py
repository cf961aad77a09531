"""The IO model: bytes, operations and roofs of one attention call, from the algorithm alone. Standard library only."""

from profiler.model.counts import Blocks, count_blocks, visible_pairs
from profiler.model.fit import Slope, log_slope
from profiler.model.implementations import MATERIALISING, knows, predict
from profiler.model.prediction import L2_COPIES, LEVELS, Prediction, StagePrediction
from profiler.model.roofs import (
    COUNTERS,
    DATA_SHEET,
    MEASURED,
    Point,
    Roof,
    attainable,
    pick,
    ridge,
    roofline_point,
    roofs,
    special_function_roof,
)
from profiler.model.waves import WaveReads, wave_reads
from profiler.model.what_if import VARY, tiles_of, what_if

__all__ = [
    "COUNTERS", "DATA_SHEET", "L2_COPIES", "LEVELS", "MATERIALISING", "MEASURED", "VARY", "Blocks", "Point",
    "Prediction", "Roof", "Slope", "StagePrediction", "WaveReads", "attainable", "count_blocks", "knows", "log_slope",
    "pick", "predict", "ridge", "roofline_point", "roofs", "special_function_roof", "tiles_of", "visible_pairs",
    "wave_reads", "what_if",
]
