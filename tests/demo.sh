#!/usr/bin/env bash
# The main job on local test hosts: one source with a real patched SGLang, two GPU hosts (the GPUs are stand-ins, the rest is real).
set -euo pipefail
cd "$DDTREE_ROOT"
fleet() { python tests/fleet/fleet.py "$@" --cache "$DDTREE_CACHE" --state "$DDTREE_STATE"; }
trap 'fleet down' EXIT

echo "demo: starting the source ct200 and the targets b300-1 and rtx6000-1"
fleet up ct200 b300-1 rtx6000-1
echo "demo: ansible-playbook -i ${DDTREE_STATE#"$DDTREE_ROOT"/}/inventory -i tests/inventory playbooks/deploy-ddtree.yml"
ansible-playbook -i "$DDTREE_STATE/inventory" -i tests/inventory playbooks/deploy-ddtree.yml
