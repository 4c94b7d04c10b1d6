#!/usr/bin/env bash
# Both README commands in a fresh clone with a new environment: `make demo`, then `make test`.
#   benchmarks/fresh_clone.sh            clones the last commit of this repository into a temporary folder
set -euo pipefail
here=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
where=$(mktemp -d)
trap 'rm -rf "$where"' EXIT
git clone --quiet "$here" "$where/unalike"
cd "$where/unalike"
for command in "make demo" "make test"; do
  began=$SECONDS
  $command
  echo "== $command: $((SECONDS - began)) s"
done
test -z "$(git status --porcelain)" || { echo "== the commands left files behind:"; git status --short; exit 1; }
echo "== both commands work in a fresh clone"
