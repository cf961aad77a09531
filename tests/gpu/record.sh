#!/bin/sh
# Records the bundles that data/ holds on this machine's GPU: sh tests/gpu/record.sh FOLDER [SUITE...]
# Each suite has SECONDS_A_SUITE (default 560); called again it goes on where it was cut off. Times go to FOLDER/times.
set -u
folder=${1:?sh tests/gpu/record.sh FOLDER [SUITE...]}
shift
mkdir -p "$folder"
failed=0
for suite in ${*:-evidence scaling backward decode tuning}; do
    [ -d "$folder/$suite" ] && continue
    began=$(date +%s)
    timeout --signal=INT --kill-after=30 "${SECONDS_A_SUITE:-560}" \
        python3 -m profiler run --suite "$suite" --out "$folder/$suite" --resume 2>"$folder/$suite.log" || failed=1
    echo "$suite: $(($(date +%s) - began)) s; $(grep 'replay passes a launch$' "$folder/$suite.log" | tail -n 1)" |
        tee -a "$folder/times"
done
exit $failed
