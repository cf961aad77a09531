"""Every sentence of the interface, in one place. Pages hold none."""

APP = "FlashScope"
TAGLINE = "Why FlashAttention is fast, measured"
NOTHING = "nothing"

# pages
EVIDENCE = "Evidence"
ROOFLINE = "Roofline"
MEMORY_IO = "Memory IO"
LAUNCHES = "Launches"
OCCUPANCY = "Occupancy & Tensor Cores"
SCALING = "Scaling"
TUNING = "Tuning"
COMPARING = "Compare"
ABOUT_DATA = "About the data"
LEARN = "Learn"

# frame
NO_PAGE_TITLE = "Not here"
NO_PAGE = "There is no page at /{name}."
NO_PAGE_REMEDY = "The address may be mistyped, or the page may have another name by now. These are all there are:"

# state
BAD_PARAMETER = "The link asks for {name} = “{wanted}”, which is not there; {shown} is shown."

# store
SHELF_FULL = "{name}: there is no room left for it beside what you have added."
SHELF_FULL_REMEDY = "Remove files you no longer need from the list in the sidebar, then add it again."
UNREADABLE = "{name}: cannot be read ({why})."

# sidebar
ADD_TITLE = "Add a report"
ADD_LABEL = "Nsight Compute report, ncu CSV or text page, or a zipped bundle"
ADD_HELP = ("`.ncu-rep`, `.ncu-repz`, CSV or text from `ncu --csv` or `--page`, or the zipped folder that "
            "`python -m profiler run` writes. The file is read on this machine, in a process of its own.")
ADD_READING = "Reading {name}…"
ADD_SAMPLE = "Try a sample report"
ADDED = "Added by you"
ADDED_NOTE = "Kept for 24 hours after the last look. Whoever has this page's link sees them and can remove them."
ADDED_GONE = ("The files that this link refers to are no longer here: they are kept for 24 hours after the last look. "
              "Add them again.")
ADD_READ_SO_FAR = "{done} of {total}"
ADDED_IN = "{launches}, read in {time}"
REMOVE = "Remove {name}"
DISMISS = "Dismiss"

# choosing
SOURCE = "Source"
SHAPE = "Shape"
MASK = "Mask"
DIRECTION = "Direction"
COMPARE = "Compare"

NOTHING_CHOSEN = "Nothing is chosen to compare."
NOTHING_CHOSEN_REMEDY = "Choose at least one implementation above."

# boxes
DETAIL = "Detail"
UNEXPECTED = "This page could not be drawn, and it is not your doing."
UNEXPECTED_REMEDY = ("Try another source or shape. If it stays, please report it with the number {id}: the log of the "
                     "app, where it was started, has the cause under that number.")
GPU_NOT_NAMED = "GPU not named"
LACKING = "Not in every launch of this report: {names}. This command collects them for the same program:"
NOTES = "What recording and reading it had to say: {count}"
PROVENANCE = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "Triton", "ncu": "ncu",
              "cache_control": "cache control", "clock_control": "clock control"}
NO_SOURCE = "There is no profile to show yet."
NO_SOURCE_REMEDY = """Three ways to get one:

- **Add a report** in the sidebar: any file that Nsight Compute wrote, from any GPU.
- **Profile a GPU**, on a machine that has one, then put the folder into `data/` or add it here, zipped:
"""
NO_SOURCE_COMMAND = "python -m profiler run --suite quick --out my-gpu"
NO_SHAPES = ("{source} does not say which attention call its launches belong to, so this page has nothing to compare "
             "in it.")
NO_SHAPES_REMEDY = ("This page needs a bundle that `python -m profiler run` "
                    "wrote: it marks each launch with its implementation, step and shape. Of any other report, say on "
                    "Roofline or Evidence what its launches do and in which call.")
NO_COUNTERS_REMEDY = ("Record it again without `--no-counters`; `python -m profiler doctor` says what the machine "
                      "lacks for that.")
DOWNLOAD_DATA = "Download the data (CSV)"
PICTURE = "Download the picture"
TO_LAUNCH = "Launch {launch}: every counter of it"
DOWNLOAD_TABLE_CSV = "Download as CSV"
DOWNLOAD_TABLE_PARQUET = "Download as parquet"
KINDS = {"measured": "measured", "derived": "derived", "predicted": "predicted", "missing": "not available"}

# tables
TITLES = {  # headings of table columns, units are added from the schema
    "label": "what", "launches": "launches", "why_not_drawn": "why", "share": "of the lower roof", "in_l2": "from L2",
    "flops": "work", "bytes": "bytes",
    "bytes_kind": "bytes are", "ns": "time", "time_kind": "time is", "intensity": "intensity",
    "flops_per_s": "throughput", "source": "source", "launch": "launch", "range": "range",
    "domain": "NVTX domain", "kernel": "kernel", "device": "GPU", "cc": "compute capability",
    "grid": "grid", "block": "block",
    "duration_ns": "time under the profiler", "dram_read_bytes": "HBM read", "dram_write_bytes": "HBM written",
    "dram_bytes_per_second": "HBM rate", "l2_bytes": "L2 requests", "l2_to_xbar_bytes": "L2 → crossbar",
    "l2_to_sm_bytes": "L2 → SM", "sm_to_l2_bytes": "SM → L2", "tensor_flops": "tensor FLOPs",
    "tensor_ops": "tensor integer ops", "tensor_dtype": "tensor type", "fp32_flops": "fp32 FLOPs",
    "fp16_flops": "fp16 FLOPs", "fp64_flops": "fp64 FLOPs", "special_ops": "special functions",
    "tensor_pipe_pct": "tensor pipe active", "achieved_occupancy_pct": "achieved occupancy",
    "theoretical_occupancy_pct": "theoretical occupancy", "occupancy_limiter": "occupancy limiter",
    "registers_per_thread": "registers a thread", "shared_bytes_per_block": "shared memory a block",
    "waves_per_sm": "waves", "spill_requests": "spills", "sm_clock_hz": "SM clock",
    "dram_peak_bytes_per_s": "HBM peak", "l2_peak_bytes_per_s": "L2 peak",
    "tensor_peak_flops_per_s": "tensor peak, dense", "l2_size_bytes": "L2 size", "sm_count": "SMs",
    "config_id": "configuration", "implementation": "implementation", "stage": "stage", "direction": "direction",
    "dtype": "type", "batch": "batch", "heads": "heads", "kv_heads": "K/V heads", "nq": "queries", "nk": "keys",
    "head_dim": "head size", "mask": "mask", "range_path": "range path", "parameters": "parameters",
    "metric": "counter", "unit": "unit", "value": "value", "used_for": "used for",
}
COLUMN_KINDS = {"identity": "", "measured": "Measured.", "derived": "Derived from counters."}
ROWS = ("{launches} kernel launches with {metrics} raw counter values · {timings} configurations timed without a "
        "profiler")
HOLDS = "**Holds:** {names}"
LACKS = "**Lacks:** {names}"
LEVEL, CAPACITY, BANDWIDTH = "level", "capacity", "bandwidth"
IMPLEMENTATION, RATIO = "implementation", "measured ÷ predicted"
WHAT, HOW_MUCH, VALUE, KIND, HOW = "what", "how much", "value", "kind", "how"
COLUMN, UNIT, MEANING, METRIC, USED_FOR = "column", "unit", "meaning", "metric", "used for"

# Launches
LAUNCHES_LEAD = ("One row is one kernel launch as the profiler saw it, in base units. Choose a row for every counter "
                 "behind it.")
SEARCH = "Search"
SEARCH_HELP = "Words that must all occur in the kernel, range, configuration or GPU name."
COLUMNS = "Columns"
NO_MATCH = "No launch matches “{words}”."
NO_MATCH_REMEDY = ("Search looks in kernel names, ranges, configurations and GPU names; every word must occur. "
                   "Shorten the search.")
NO_LAUNCHES = "{source} holds no profiled launch."
LAUNCH_COUNT = "{shown} of {all} launches"
ROWS_SHOWN = "Rows"
ROWS_RANGE = "{first} – {last} of {all}"
ORDER = "In order of"
ORDER_HELP = "Numbers from the largest down, launches from the first on. A click on a heading sorts the rows shown."
LAUNCH_TITLE = "Launch {launch}"
LAUNCH_HINT = "Choose a row above to see every counter of that launch."
DIAGNOSIS = "What holds this launch back: {counts}"
FINDING_COUNTS = {"look here": "{n} to look at", "fine": "{n} fine", "cannot tell": "{n} cannot be told"}
FINDING_CHANGE = "Change: {change}."
RAW_METRICS = "Counters of this launch"
RAW_SEARCH = "Search in counters"
NO_RAW = "{source} keeps no raw counters, only the columns above."
NO_RAW_REMEDY = "They are kept by `python -m profiler run` and when a report is added as a file."

# About the data
ABOUT_MORE = "Which quantities it holds and lacks, and the ceilings measured with it"
ABOUT_DATA_LEAD = "Where each source comes from, what it holds and what it lacks. Nothing here leaves this machine."
CEILINGS = "Ceilings measured on this GPU in the same run"
CEILING_NAMES = {"dram_copy_bytes_per_s": "HBM, read and written", "dram_read_bytes_per_s": "HBM, read",
                 "matmul_bf16_flops_per_s": "matmul in bf16", "matmul_fp16_flops_per_s": "matmul in fp16"}
DATA_COLUMNS = ("source", "GPU", "recorded", "what was run", "launches", "timed", "lacks")
NOT_SAID = "not said"
PROFILE_JSON = "Everything that was recorded about it (`profile.json`)"
COLUMNS_TITLE = "What each column means"
COLUMNS_LEAD = ("Base units everywhere: bytes, nanoseconds, hertz, per cent of 100. A value that was not measured is "
                "empty, never 0.")

# Evidence
RATIOS = ("Two ratios of HBM bytes: a point here stands at the bytes that were counted, {naive} over {flash}: "
          "{counted}. Evidence's headline, {headline}, is naive's bytes over the {floor} that must move: what a kernel "
          "moves beyond that is its own, not attention's.")
SENTENCE = "{flash} needs {ratio} fewer HBM bytes than naive attention: {floor} instead of {naive}"
SENTENCE_SAME_WORK = ", for the same work"
SENTENCE_MORE_WORK = ", at {work} the matmul work"
SENTENCE_FASTER = ", and is {speed} as fast"
SENTENCE_SLOWER = ", yet takes {speed} the time here"
SENTENCE_WITHOUT = "The result needs {floor} through HBM; naive and flash are not both here with counters to compare."
BASIS = {
    "forward": "Compulsory are {floor}: Q, K and V read once, O written once; the ratio is by this floor.",
    "backward": "Compulsory are {floor}: Q, K, V, O and dO read once, dQ, dK and dV written once; the ratio is by this "
                "floor.",
}
BASIS_COUNTED = " Counted were {counted}{ratio}"
BASIS_FEWER = " ({ratio} fewer)"
BASIS_L2 = ": up to {l2} of a kernel's writes may still lie in L2 when it ends, which flatters it."
NAIVE_FLASH = "naive {naive}, flash {flash}"
SAME = "{value}, both"
LESS = "less"
FASTER = "as fast"
NOT_COLLECTED = "the counter was not collected"
CARD_FLOPS = "Matmul work"
CARD_FLOPS_PREDICTED = {way: f"{each}·batch·heads·visible pairs·D; not counted on both sides"
                        for way, each in (("forward", 4), ("backward", 10))}
CARD_FLOPS_HELP = "Floating-point operations of the Tensor Cores, as their counter says; a multiply-add counts 2."
CARD_MEMORY = "Peak memory"
CARD_MEMORY_HELP = "Largest allocation above the inputs during one call, output included."
CARD_SPEED = "Speed"
CARD_SPEED_HELP = "Medians of CUDA-event times without the profiler, L2 flushed before each call."
CARD_SPEED_FOLDED = "; {ratio} of the best unfused form"
CARD_ERROR = "Relative error"
CARD_ERROR_BASIS = "‖O − reference‖ ÷ ‖reference‖ in float64"
CARD_ERROR_EAGER = "; eager PyTorch in the same type: {error}"
CARD_ERROR_HELP = "FlashAttention is exact: what differs is rounding, as with any other order of the same sums."
CARD_ERROR_MISSING = "recorded by `python -m profiler run`, not by a report"
CARD_OCCUPANCY = "Occupancy · Tensor use"
CARD_OCCUPANCY_BASIS = "flash; naive {occupancy} · {tensor}, weighted by time"
CARD_OCCUPANCY_HELP = ("Warps resident, of the most an SM holds · cycles the tensor pipe was active. Occupancy is not "
                       "speed.")
CLAIMS_TITLE = "What was checked on this data: {counts}"
ROOFLINE_LEVEL = "Bytes at"
ROOFLINE_LEVELS = {"dram": "HBM", "l2": "L2", "l1": "L1"}
ROOFLINE_STAGES = "Steps of naive"
ROOFLINE_STAGES_HELP = "Show each launch of an implementation that has several, beside the sum of them."
NOT_DRAWN = "Not drawn: {count}, and why"
POINTS = "The numbers behind the points"
MEMORY_SHOW = "Show"
MEMORY_SHOWS = {"scaling": "Over N", "traffic": "Between levels", "pyramid": "Pyramid", "theorem": "The theorem",
                "parity": "Predicted and measured", "bounds": "Time and roofs", "what_if": "What if"}
MEMORY_WHY = {
    "scaling": "S and P have N² entries, Q, K, V and O have N·D: what crosses HBM, and what must be allocated, "
               "grows accordingly.",
    "traffic": "What one pass moves between HBM, L2 and the SMs, from the counters of each level.",
    "theorem": "K and V are read once for every block of query rows. Behind a large L2 that traffic flows between "
               "L2 and the SMs, and HBM stays at the compulsory bytes whatever the block.",
    "parity": "Every stage of every configuration: what the IO model predicts against what the counters say.",
    "pyramid": "The memories of this GPU, the nearer to the arithmetic the smaller and the faster, and what one pass "
               "moved between them.",
    "bounds": "The time that was taken, and what each roof alone would ask for: the longest hollow bar binds.",
    "what_if": "The IO model with one thing changed and the rest as recorded: a prediction, not a measurement.",
}
QUANTITY = "Quantity"
NO_BLOCKS = "{source} has no implementation whose block size is known on this shape."
NO_BLOCKS_REMEDY = "Profile our kernels: `python -m profiler run --suite tuning` varies the block size."
PAPER = "The paper's own numbers, checked: GPT-2 medium on an A100"
PAPER_LEAD = ("Printed in Figure 2 of the FlashAttention paper (Dao et al. 2022), not measured here: one layer's "
              "attention, forward and backward, N {n}, D {d}, {heads} heads, batch {batch}. Beside it what the paper's "
              "algorithms must move on that shape, by counting; nothing is fitted.")
PAPER_NOTE = ("Standard attention's printed bytes lie between its bare algorithm and the same with masking and dropout "
              "as launches of their own, as training without fusion has them; FlashAttention does both on the chip. "
              "Its count takes {sram} of on-chip memory, the paper's figure for one multiprocessor. The printed FLOPs "
              "are not those of the whole batch; only their ratio compares. More FLOPs, fewer bytes, less time.")
PAPER_ROWS = {"gb_printed": "HBM bytes, printed", "gb_counted": "HBM bytes, counted from the algorithm",
              "gb_most": "the same, masking and dropout as launches of their own", "ms_printed": "time, printed",
              "gflop_printed": "FLOPs, printed", "gflop_counted": "matmul FLOPs of the batch, counted"}
PAPER_COLUMNS = ("", "standard", "FlashAttention", "standard ÷ FlashAttention")
PYRAMID = "Capacity and bandwidth of each level"
BESIDE_MATMULS = "Work beside the matmuls, implementation by implementation"
BESIDE_MATMULS_WHY = ("FlashAttention-2 does less beside its matmuls than FlashAttention-1. Operations of the CUDA "
                      "cores (fp32) and of the special-function units, counted, for every 100 FLOP on the "
                      "Tensor Cores.")
NO_VERSIONS = "FlashAttention-1 is not set beside 2: {why}; {shared}."
BESIDE = {"matmul": "on Tensor Cores", "core": "fp32 on CUDA cores", "special": "special functions",
          "share": "beside 100 matmul FLOP", "stall": "most warps wait for"}
OCCUPANCY_SHOW = "Show"
OCCUPANCY_SHOWS = {"quadrant": "Occupancy and Tensor Cores", "bounds": "Which roof binds"}
OCCUPANCY_WHY = ("Occupancy counts the warps that are resident to hide one another's waiting. A kernel that overlaps "
                 "its own loads and matmuls needs few of them.")
OCCUPIED = {"achieved_occupancy_pct": "occupancy", "theoretical_occupancy_pct": "at most",
            "occupancy_limiter": "limited by", "tensor_pipe_pct": "Tensor Cores active",
            "registers_per_thread": "registers a thread", "shared_bytes_per_block": "shared memory a block",
            "special_ops": "special functions", "duration_ns": "time, profiled"}
OCCUPANCY_TABLE = "Launch by launch: occupancy, what limits it, and the pipes"
SCALING_SHOW = "Show"
SCALING_SHOWS = {"n": "Over N", "shape": "On one shape"}
SCALING_QUANTITIES = {"tflops": "TFLOP/s", "time": "Time", "dram_bytes": "HBM bytes", "peak_memory": "Peak memory"}
SCALING_SLOPES = "How each quantity grows: fitted exponents of N"
TIMINGS_ONLY = ("Without counters a source holds times, errors and peak memory at most; bytes, FLOPs and occupancy "
                "need them.")
ALL_COUNTERS = "all counters: recorded without them"
TIMINGS_PAGES = ("scaling", "tuning")
BESIDE_PEER = "as fast as the fastest peer there"
TIMINGS_TABLE = "The timings, as recorded"
IO_QUANTITIES = {
    "scaling": {"dram_bytes": "HBM bytes", "peak_memory": "Peak memory", "l2_to_sm": "L2 → SM bytes",
                "sm_to_l2": "SM → L2 bytes"},
    "theorem": {"block": "Over the block size", "n": "Over N"},
    "parity": {"l2_to_sm": "L2 → SM", "sm_to_l2": "SM → L2", "dram_read": "HBM read", "dram_write": "HBM written",
               "tensor_flops": "Tensor FLOPs", "special_ops": "Special functions"},
    "what_if": {"sram_bytes": "On-chip memory M", "n": "Length N", "head_dim": "Head size D",
                "dram_bytes_per_s": "HBM bandwidth", "tensor_flops_per_s": "Tensor rate",
                "special_ops_per_s": "Special-function rate"},
}
VALUES = "The values and their predictions"
WORST = "The ten furthest from their prediction, and what explains them"
WORST_NONE = "Nothing here has both a measurement and a prediction that it should meet."
WORST_STAGE, WORST_ALLOWED, WORST_WITHIN, WORST_WHY = "stage", "allowed", "within", "what makes it up"
YES, NO = "yes", "no"
VERDICT_COUNTS = {"holds": "{n} hold", "fails": "{n} fail", "cannot tell": "{n} cannot be told"}
CLAIM_TOLERANCE = "Held to: {tolerance}. Numbers are {kind}."
CLAIM_SOURCE = "on {source}"
CLAIM_INPUTS = "Decided by {inputs}"
CLAIM_LACKS = "Lacking here: {missing}"
CLAIMS_DOWNLOAD = "Download the checks (JSON)"
CONFIGURATION = "{flash} ran with {tile}{which}."
CONFIGURATION_BLOCKS = "{size} (query rows × keys a block)"
CONFIGURATION_BEST = ", the fastest of {count} configurations here"
CONFIGURATION_FASTER = (" It is not the fastest known: {source} holds {tile}, which takes {time}; this one takes "
                        "{own}{where}.")
CONFIGURATION_THERE = " there"
IN_L2 = "S would fit in L2"
NEAR_L2 = "S is only {ratio} the L2"
IN_L2_WHY = ("One N×N matrix is {matrix} here and the L2 holds {l2}: a pass over S or P need not reach HBM, so HBM "
             "bytes cannot show whether they stayed on chip.")
NEXT = {  # page -> (the page to read after it, the question that one answers)
    "evidence": ("roofline", "How near do they come to what this GPU can do? Roofline"),
    "roofline": ("memory_io", "Where do the bytes go, and how do they grow with N? Memory IO"),
    "memory_io": ("occupancy", "Is the lower occupancy a problem? Occupancy & Tensor Cores"),
    "occupancy": ("scaling", "What does that make in time? Scaling"),
    "scaling": ("tuning", "Which block sizes are the fastest, and why? Tuning"),
    "tuning": ("launches", "Which counters is all this made of? Launches"),
    "launches": ("about_data", "Where does the data come from? About the data"),
}

# roles of launches, roofs of one's own
ROLES_TITLE = "What these launches do in attention: {count} of {all} named"
ROLES_LEAD = ("Proposed from kernel names, NVTX ranges and HBM bytes; change what is wrong. Once used, they are part "
              "of this link, and Compare, Roofline and Evidence go by them.")
ROLES_USE, ROLES_FORGET = "Use these roles", "Forget them"
ROLES_COLUMNS = {"kernel": "kernel", "role": "role", "why": "why", "range": "range", "launches": "launches"}
ROLE_NAMES = {"": "none", "scores": "score matmul", "scale": "scale", "mask": "mask", "softmax": "softmax",
              "values": "value matmul", "attention": "fused attention", "merge": "merge of parts"}
ROLE_CHOSEN = "chosen by you"
CALL = "The attention call they make together"
CALL_HELP = ("Batch, query heads (H16/4: and key/value heads), length (Nq1 Nk4096 where they differ), head size, type, "
             "mask. With it, the claims can be checked on this report; of a kernel launched several times the first "
             "launch stands for the call.")
OWN_ROOFS = "Roofs of your own"
OWN_ROOFS_LEAD = {
    True: "{gpu} is not in the table of data sheets under exactly that name, so there is no data-sheet roof: no other "
          "GPU's is lent. Roofs above are from the report's own counters.",
    False: "The data sheet's roofs are used. A figure that you enter stands before them.",
}
OWN_ROOF = {"dram": "Memory, GB/s", "tensor": "Tensor Cores, dense TFLOP/s"}
OWN_ROOF_BAD = "{name}: expected a number above 0, got “{got}”; it is left out."
CLOCK_NOTE = "The roofs from counters are {note}."
ROOFS_TITLE = "The roofs, and where each comes from"
ROOF_COLUMNS = {"gpu": "GPU", "roof": "roof", "value": "value", "source": "source", "how": "how"}

# Compare
COMPARE_VIEW = "Under"
COMPARE_VIEWS = {"own": "each GPU's roofs", "ridge": "its own ridge"}
COMPARE_ROLES = "By role: what each source needed for the same step"
COMPARE_ROLE_NOTE = ("Sums over the launches of a role, time under the profiler. The lower roof is the nearest limit "
                     "at that intensity; a kernel well below it is held up by what no roof shows: waiting for memory, "
                     "synchronisation, or SMs that run out of blocks.")
ROLE_BY = {(True, True): "recorded", (False, True): "recorded or chosen", (False, False): "proposed",
           (True, False): "proposed"}  # (a profile of ours, it names stages)
METRIC_SET, METRICS_COLLECTED = "counters collected", "{n} names"
COMPARE_ROLE_COLUMNS = {"source": "source", "role": "role", "by": "role is", "launches": "launches", "time": "time",
                        "bytes": "bytes at {level}", "work": "work", "rate": "throughput", "share": "of the lower roof"}
SOURCES = "Sources"
COMPARE_NEEDS_TWO = "Comparing takes two sources."
COMPARE_NEEDS_TWO_REMEDY = ("Choose a second one above, or add a report in the sidebar: from another GPU, another day, "
                            "or another version of a kernel.")
COMPARE_DIFFERS = "Before any ratio: these sources differ in {names}."
COMPARE_WITHOUT = "Nothing of this shape, mask and direction is in {names}."
COMPARE_RECORDED = "How each was recorded"
GPU, SM_CLOCK = "GPU", "SM clock under the profiler"
SAME_OR_NOT, SAME_WORD, DIFFERS = "across", "same", "differs"
CARD_HBM = "HBM bytes"
TIME_UNPROFILED = "Time, unprofiled median"

# Tuning
TUNING_QUANTITIES = {"time": "Time", "registers": "Registers", "shared": "Shared memory", "spills": "Spills",
                     "l2_to_sm": "L2 → SM bytes"}
TUNING_TABLE = "Every configuration, fastest first, and what the slower ones lose to"
TUNING_LOSE = "**Why the rest lose.** {said}"
TUNING_SHIPPED = "**Beside the shipped one.** {said}"
TUNING_NOT_SHIPPED = ("No source here ran the configuration that the kernels ship with on this shape and GPU, so the "
                      "two cannot be compared.")
TUNING_SHAPES = "The fastest of each shape"
TUNED_SHAPES = ("shape", "fastest", "time", "slowest takes", "shipped configuration takes")
TUNED = {"block_m": "query rows", "block_n": "keys", "num_warps": "warps", "num_stages": "stages",
         "time": "time", "versus_best": "× the fastest", "registers": "registers a thread",
         "shared": "shared memory a block", "spills": "spills", "reasons": "beside the fastest"}
BLOCK_PAIRS_TITLE = "Four block pairs that an article compares, its A100 beside this GPU"
BLOCK_PAIRS = {"block_m": "query rows", "block_n": "keys", "here": "time here, best warps and stages",
               "here_ratio": "× the fastest here", "here_memory": "peak memory here",
               "published": "time, the article's A100", "published_ratio": "× the fastest there",
               "published_memory": "memory, the article's A100"}
BLOCK_PAIRS_NOTE = ("The A100 columns are the article's, not measured here, of N 2,048 and D 64 and another kernel: "
                    "compare the ratios, not the times.")
LADDER = "FlashAttention-1, 2 and 3, one idea at a time"
LADDER_FROM = "From {source}, on the shape nearest to the one chosen."
NO_LADDER = "No source holds the Hopper kernel with its ideas switched off."
NO_LADDER_REMEDY = "Record one on a GPU of compute capability 9.0:"
NO_LADDER_COMMAND = "python -m profiler run --suite ladder --out my-ladder"
NO_TUNING = "{source} holds one configuration of each kernel on this shape, so there is nothing to tune by."
NO_TUNING_REMEDY = "Choose a source that varies the block size, or record one on a machine with a GPU:"
NO_TUNING_COMMAND = "python -m profiler run --suite tuning --out my-tuning"

# Run
RUN = "Run"
RUN_LOOKING = "Looking at what this machine has…"
RUN_CANNOT = "This machine cannot profile: {why}. Opening profiles and reports works without."
RUN_ELSEWHERE = ("On a Linux machine with an NVIDIA GPU, copy this folder there and run in it; `doctor` says what is "
                 "missing there, with the remedy for each:")
RUN_COMMANDS = """pip install -r requirements.txt
python -m profiler doctor --strict
python -m profiler run --suite {suite} --out my-gpu
python -m zipfile -c my-gpu.zip my-gpu"""
RUN_BACK = ("Then bring `my-gpu.zip` here: **Add a report** in the sidebar takes it as it is. To keep it for every "
            "visitor, put the folder `my-gpu` into `{folder}` beside the recorded profiles. Where the counters are not "
            "permitted, add `--no-counters` to `run`: time, memory and error are measured all the same.")
RUN_LACKS = "What this machine lacks, and the remedy for each"
RUN_SUITE = "Suite"
RUN_COUNTERS = "Counters"
RUN_COUNTERS_HELP = "Off: time, memory and error only. Needs no permission for performance counters."
RUN_NO_COUNTERS = "This machine can measure time, memory and error; what it lacks for bytes and FLOPs stands below."
RUN_START = "Start"
RUN_NOT_HERE = "Runs are started and ended only by someone at this machine: open the app there, at its local address."
RUN_PLAN = "{configs} on {shapes}: {names}. The result becomes a source here."
RUN_STATES = {"waiting": "waiting for the run before it", "running": "running", "done": "done", "failed": "failed",
              "cancelled": "cancelled"}
RUN_CANCEL = "Cancel"
RUN_OPEN = "Open the result"
RUN_LOG = "Log"
QUEUE_FULL = "Three runs are waiting already."
QUEUE_FULL_REMEDY = "Wait for one to finish, or cancel one."
DOCTOR_FAILED = "What this machine has could not be found out."
DOCTOR_FAILED_REMEDY = "`python -m profiler doctor` in a terminal says more."

# Present and Export
PRESENT = "Present"
EXPORT = "Export"
EXPORT_LEAD = ("A talk of what is chosen here: one HTML file that opens without a network, PowerPoint, PDF, every "
               "figure as SVG and PNG with its data, tables in Markdown and LaTeX. Only screens whose claims hold are "
               "kept.")
TALK_DRAWING = "Drawing the screens…"
TALK_LEAVE = "Leave"
TALK_SHOW, TALK_ORDER = "show", "order"
TALK_TITLE = "what it finds, or a title of your own"
TALK_DROPPED = "left out, see below"
TALK_LEFT_OUT = "Left out"
EXPORT_MAKE = "Make the files"
EXPORT_KEEP = "Save the story in the bundle"
EXPORT_TAKE = "Download the story"
EXPORT_TAKE_HELP = "Put the file story.json into the bundle's folder: it is told again wherever the bundle is opened."
EXPORT_KEPT = "Saved as {file} in the bundle; it is told again wherever the bundle is opened."
EXPORT_NOT_KEPT = "The story could not be saved: the bundle's folder cannot be written."
EXPORT_NOT_KEPT_REMEDY = "The zip holds it as story.json: put that file into the bundle's folder."
EXPORT_DOWNLOAD = "Download {count} files (zip)"
