#!/bin/sh
# Fuzzes every target of the module for a time each, as many at once as there are processors,
# and fails if one of them did.
#
#   test/fuzz.sh 5s
#
# A target that fails with nothing but "context deadline exceeded" has found nothing: the
# time was up while an input was being tried, and Go before 1.27 may take the one
# for the other (golang/go#75804), the more often the busier the machine is. What
# it finds it writes to testdata/fuzz, and says so.
set -eu

# fuzz TIME PACKAGE TARGET fuzzes one, and says what came of it when that is known.
fuzz() {
	out=$(mktemp)
	trap 'rm -f "$out"' EXIT
	echo "fuzz $2 $3 for $1" >"$out"
	status=0
	go test -run '^$' -fuzz "^$3\$" -fuzztime "$1" -fuzzminimizetime 1s -parallel 1 "$2" >>"$out" 2>&1 || status=$?
	# What a target says of its failure is indented.
	if [ $status != 0 ] && [ "$(grep '^ ' "$out")" = "    context deadline exceeded" ]; then
		echo "$3 had found nothing when its time was up" >>"$out"
		status=0
	fi
	cat "$out"
	return $status
}

if [ $# = 3 ]; then
	fuzz "$@"
	exit
fi
for package in $(go list ./...); do
	go test -list '^Fuzz' "$package" | sed -n "s|^Fuzz.*|$package &|p"
done | xargs -L 1 -P "$(nproc)" "$0" "$1" || { echo "a target failed: see above"; exit 1; }
