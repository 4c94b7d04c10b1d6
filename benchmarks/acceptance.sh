#!/usr/bin/env bash
# The slow tests and the benchmarks, one part after another, each with a log of its own in docs/acceptance/.
#   benchmarks/acceptance.sh                     all parts: many hours
#   benchmarks/acceptance.sh tests engines       the slow tests, and benchmarks/engines.py
# A log begins with the command, the commit, the day and the machine's load. A part that fails does not stop the others.
set -uo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
python=.venv/bin/python
[ $# -gt 0 ] || set -- tests $(cd benchmarks && ls [!_]*.py | sed 's/\.py$//')
mkdir -p docs/acceptance
failed=()
for part; do
  command="$python benchmarks/$part.py"
  [ "$part" != tests ] || command="env OMP_NUM_THREADS=1 $python -m pytest -n 2 -m slow"
  changed=$(git diff --quiet HEAD -- unalike benchmarks tests || echo " with changes")
  {
    echo "== $command"
    echo "== commit $(git rev-parse --short HEAD)$changed, $(date -u +%F), load $(cut -d' ' -f1 /proc/loadavg) on $(nproc) cores"
    began=$SECONDS
    $command && end=passed || end=FAILED
    echo "== $end in $((SECONDS - began)) s"
    [ $end = passed ]
  } 2>&1 | tee "docs/acceptance/$part.log" || failed+=("$part")
done
[ ${#failed[@]} -eq 0 ] || { echo "== failed: ${failed[*]}"; exit 1; }
echo "== all passed"
