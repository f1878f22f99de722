#!/bin/bash
# Shows on a machine with an NVIDIA GPU what docs/limits.md says has not been seen, and what sharing
# costs. It prints a table, and writes it with JSON and pictures into the folder results.
#
#   test/gpu/run.sh                       all parts, each of 8 minutes at most
#   test/gpu/run.sh -list                 the parts, and what they ask
#   test/gpu/run.sh -parts mps,daemon     some parts
#   test/gpu/run.sh -pack kit.tar.gz      a kit for a machine without Go and gcc: unpack it there, and
#                                         start run.sh in it. It needs no network
#   test/gpu/run.sh -page                 make docs/hardware.md of the results
#
# It needs the driver, and root for most. It runs on the first two GPUs, which no one else should
# use meanwhile. Compute mode, MIG mode and clocks are left as they are, and compared at the end.
# For level kernel, whose containers are control groups below kubepods, it puts the dmem controller
# into cgroup.subtree_control of the root and of kubepods, where Linux has it and they do not.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
most=$((60 << 20)) # bytes of a packed kit

build() { # FOLDER
	cd "$here"
	gcc -O2 -Wall -o "$1/probe" probe/probe.c -ldl
	(cd ../.. && CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go build -ldflags="-s -w" -o "$1/" ./cmd/gpumem-device-plugin)
	go build -ldflags="-s -w" -o "$1/gpu" .
}

pack() { # ARCHIVE
	mkdir -p "$out/gpumem-kit/prebuilt"
	build "$out/gpumem-kit/prebuilt"
	cp "$here/run.sh" "$out/gpumem-kit/"
	tar -C "$out" -czf "$1" gpumem-kit
	size=$(stat -c %s "$1")
	[ "$size" -le $most ] || { echo "$1 has $size bytes, and may have $most" >&2; exit 1; }
	echo "$1: $((size >> 20)) MiB"
}

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
case ${1-} in
-pack)
	pack "$(realpath -m "${2:?where to: run.sh -pack kit.tar.gz}")"
	exit;;
-page)
	cd "$here"
	go run . -page -results results -docs ../../docs/hardware.md
	exit;;
esac
programs=$here/prebuilt
if [ ! -x "$programs/gpu" ]; then
	programs=$out
	build "$programs"
fi
"$programs/gpu" -plugin "$programs/gpumem-device-plugin" -probe "$programs/probe" -results "$here/results" "$@" &
gpu=$!
trap 'kill -TERM $gpu' INT TERM HUP # and wait until it has taken away what it made
code=0
while wait $gpu || { code=$?; kill -0 $gpu 2>/dev/null; }; do
	if ! kill -0 $gpu 2>/dev/null; then break; fi
done
exit $code
