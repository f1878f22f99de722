#!/usr/bin/env bash
# Runs a command in the checkout with the compilers that releases are made with: two who
# run "test/release/in-docker.sh make release RELEASE=-all" get the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."
docker build --quiet --platform linux/amd64 --tag gpumem-release test/release
exec docker run --rm --platform linux/amd64 --volume "$PWD:/src" --user "$(id -u):$(id -g)" --env HOME=/tmp --env GOTOOLCHAIN=local gpumem-release "$@"
