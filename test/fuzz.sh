#!/bin/sh
# Fuzzes every target of the module for a time each, and says at the end which
# failed.
#
#   test/fuzz.sh 5s [flags of go test]
#
# A target that fails with nothing but "context deadline exceeded" has found nothing: the
# time was up while an input was being tried, and Go before 1.27 may take the one
# for the other (golang/go#75804), the more often the busier the machine is. What
# it finds it writes to testdata/fuzz, and says so.
set -eu
time=$1
shift
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failed=

# What a target says of its failure is indented.
ranOut() {
	[ "$(grep '^ ' "$out")" = "    context deadline exceeded" ]
}

packages=$(go list ./...)
for package in $packages; do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "fuzz $package $target for $time"
		status=0
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s "$@" "$package" >"$out" 2>&1 || status=$?
		if [ $status != 0 ] && ranOut; then
			grep '^fuzz:' "$out"
			echo "$target had found nothing when its time was up"
			continue
		fi
		cat "$out"
		if [ $status != 0 ]; then
			failed="$failed $target"
		fi
	done
done
if [ -n "$failed" ]; then
	echo "failed:$failed"
	exit 1
fi
