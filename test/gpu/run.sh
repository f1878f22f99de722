#!/bin/bash
# Shows on a machine with an NVIDIA GPU what docs/limits.md says has not been seen.
# It prints a table and writes gpu-limits.json, or the file that is named:
#
#   test/gpu/run.sh [-json FILE] [-seconds 5] [-units 2] [-levels advisory,mps,kernel]
#
# It needs the driver, Go, gcc, and root for the levels mps and kernel. It runs on the
# first GPU, which nobody else should use meanwhile. Compute modes are left as they are.
# For level kernel, whose containers are control groups below kubepods, it puts the dmem controller
# into cgroup.subtree_control of the root and of kubepods, where Linux has it and they do not.
set -eu
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations"
gcc -O2 -Wall -o "$out/probe" probe/probe.c -ldl
(cd ../.. && CGO_ENABLED=1 go build -o "$out/" ./cmd/gpumem-device-plugin)
go build -o "$out/gpu" .
[ $# -gt 0 ] || set -- -json gpu-limits.json
"$out/gpu" -plugin "$out/gpumem-device-plugin" -probe "$out/probe" "$@"
