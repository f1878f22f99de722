#!/bin/bash
# Measures gpumem on a machine with NVIDIA GPUs. README.md describes the steps.
#
#   run.sh [--budget SECONDS] [--steps a,b,...]   measure; results go to $OUT, or to ./gpu-results
#   run.sh -dry [...]                             the same against the simulated driver, without a GPU
#   run.sh -pack FILE.tar.xz                      write an archive that runs without Go, gcc and a network
#
# A dry run simulates DRY_GPUS GPUs (1) with driver DRY_DRIVER (580.159.04).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if ! python3 -c 'import argparse, ctypes, http.client, importlib.metadata, json, lzma, queue, signal, subprocess, tarfile, tempfile, uuid'; then
	echo "run.sh: python3 is missing, or lacks modules of its standard library: apt-get install python3" >&2
	exit 1
fi

build() { # FOLDER
	repo=$(cd "$here/../.." && pwd)
	mkdir -p "$1/fake/bin"
	(cd "$repo" && CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go build -buildvcs=false -tags netgo,osusergo -ldflags="-s -w" -o "$1/" ./cmd/gpumem-device-plugin)
	(cd "$repo" && CGO_ENABLED=0 go build -buildvcs=false -tags netgo,osusergo -ldflags="-s -w" -o "$1/fake/bin/nvidia-cuda-mps-control" ./pkg/node/mps/internal/standin)
	(cd "$repo/test" && CGO_ENABLED=0 go build -buildvcs=false -tags netgo,osusergo -ldflags="-s -w" -o "$1/node" ./gpu/node)
	gcc -shared -fPIC -O2 -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 -o "$1/fake/libnvidia-ml.so.1" "$repo"/test/fakenvml/src/*.c -lpthread
	ln -sf libnvidia-ml.so.1 "$1/fake/libcuda.so.1"
	(git -C "$repo" describe --always --dirty 2>/dev/null || echo unknown) >"$1/commit"
}

if [ "${1-}" = -pack ]; then
	archive=$(realpath -m "$2")
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
	mkdir "$folder/gpu-kit"
	cp "$here"/run.sh "$here"/*.py "$here"/README.md "$folder/gpu-kit/"
	build "$folder/gpu-kit/programs"
	mkdir -p "$(dirname "$archive")"
	(cd "$folder" && python3 -m tarfile -c "$archive" gpu-kit) # its name selects the compression
	ls -l "$archive"
	exit
fi
programs=$here/programs # in an archive
if [ ! -d "$programs" ]; then
	programs=$(cd "$here/../.." && pwd)/bin/gpu-kit
	build "$programs"
fi
OUT=$(realpath -m "${OUT:-gpu-results}")
mkdir -p "$OUT"
if [ "${1-}" = -dry ]; then
	shift
	export FAKENVML_CONFIG=$OUT/dry/gpus.json LD_LIBRARY_PATH=$programs/fake PATH=$programs/fake/bin:$PATH
	mkdir -p "$OUT/dry"
	python3 -c 'import json, sys; driver, count = sys.argv[1], int(sys.argv[2]); new = int(driver.split(".")[0]) >= 615
print(json.dumps({"driverVersion": driver, "nvmlVersion": "13." + driver, "cudaDriverVersion": 13040 if new else 13000, "gpus": [
 {"uuid": "GPU-5f2c1a7%d-1111-2222-3333-444455556666" % i, "model": "NVIDIA H100 80GB HBM3", "memoryMiB": 81559, "reservedMiB": 551, "minor": i,
  "pci": "00000000:0%d:00.0" % (5 + i), "computeCapability": "9.0", "smCount": 132} for i in range(count)]}))' "${DRY_DRIVER:-580.159.04}" "${DRY_GPUS:-1}" >"$FAKENVML_CONFIG"
	set -- --dry --nvml "$programs/fake/libnvidia-ml.so.1" "$@"
fi
export PATH=$PATH:/usr/local/nvidia/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# The supervisor of the MPS daemon mounts over /dev/shm: the run gets mounts of its own where it may.
own="unshare -m --propagation private"
$own true 2>/dev/null || own=
exec $own python3 "$here/steps.py" --out "$OUT" --commit "$(cat "$programs/commit")" --plugin "$programs/gpumem-device-plugin" --node "$programs/node" "$@"
