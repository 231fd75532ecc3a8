#!/usr/bin/env bash
# One molecule scenario on test hosts of its own: they are started before it and stopped after it, however it ends.
# usage: molecule.sh SCENARIO
set -euo pipefail
cd "$DDTREE_ROOT"
export ANSIBLE_CONFIG=$DDTREE_ROOT/ansible.cfg
trap 'molecule destroy --scenario-name default' EXIT
molecule create --scenario-name default
molecule test --scenario-name "$1"
