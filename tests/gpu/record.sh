#!/bin/sh
# Records the bundles that data/ holds on this machine's GPU: sh tests/gpu/record.sh FOLDER [SUITE...]
# All four take about nine minutes on an H200, most of it the first; called again it goes on where it was cut off.
set -e
folder=${1:?sh tests/gpu/record.sh FOLDER [SUITE...]}
shift
for suite in ${*:-evidence backward decode tuning}; do
    [ -d "$folder/$suite" ] && continue
    began=$(date +%s)
    python3 -m profiler run --suite "$suite" --out "$folder/$suite" --resume
    echo "$suite: $(($(date +%s) - began)) s" >&2
done
