"""Profiling on this machine: ``doctor.diagnose`` says what is there, ``run.run`` makes a bundle.

``suites.py`` names what to profile, ``ncu.py`` finds Nsight Compute and builds its command line, ``watch.py`` runs it
and names every way it can fail, ``worker.py`` starts the workload and reads its records.
"""
