"""The process on the GPU. Started with ``python -m profiler.workload PLAN.json RESULT.jsonl``; nothing imports it.

``plan.py`` reads what to do; ``implementations.py`` calls our kernels and the peers; ``timing.py`` measures without a
profiler; ``counters.py`` opens the NVTX ranges that ncu selects by; ``accuracy.py`` compares with float64;
``ceilings.py`` measures what this GPU can do at best; ``device.py`` says what it is.
"""
