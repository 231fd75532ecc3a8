#!/usr/bin/env bash
# One molecule scenario on test hosts of its own: started before it, stopped after it, however it ends.
# usage: molecule.sh SCENARIO
set -euo pipefail
cd "$DDTREE_ROOT"
export ANSIBLE_CONFIG=$DDTREE_ROOT/ansible.cfg ANSIBLE_COLLECTIONS_PATH=$DDTREE_ROOT/.collections
for scenario in default "$1"; do molecule reset --scenario-name "$scenario" >/dev/null 2>&1 || true; done
trap 'python tests/fleet/fleet.py down --state "$DDTREE_STATE"' EXIT
molecule test --scenario-name "$1"
