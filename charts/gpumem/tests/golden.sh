#!/bin/sh
# Renders the chart with each file of ci/ and compares with tests/golden/, then
# sees that each file of tests/refused/ is refused with the words of its first line.
#
#   tests/golden.sh            compare; exit status 1 where something differs
#   tests/golden.sh --update   write what is rendered now
#
# HELM names the helm to use, 3.14 or newer; "helm" unless it is set.
set -eu
cd "$(dirname "$0")/.."
helm=${HELM:-helm}
update=${1:-}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

"$helm" lint --strict --quiet .

# helm shows the notes of an installed release only. In a copy of the chart they
# are an object.
cp -r . "$out/chart"
printf 'notes: |\n{{ include (print .Template.BasePath "/NOTES.txt") . | indent 2 }}\n' >"$out/chart/templates/notes.yaml"

for values in ci/*-values.yaml; do
	name=$(basename "$values" -values.yaml)
	"$helm" lint --strict --quiet --values "$values" .
	# A vendor's version, so that every render shows that the suffix goes.
	"$helm" template gpumem . --namespace gpumem-system --kube-version v1.36.3-eks-1a2b3c4 \
		--values "$values" >"$out/$name.yaml"
	"$helm" template gpumem "$out/chart" --namespace gpumem-system --kube-version v1.36.3 \
		--values "$values" --show-only templates/notes.yaml >"$out/$name.txt"
	for render in "$name.yaml" "$name.txt"; do
		if [ "$update" = --update ]; then
			cp "$out/$render" "tests/golden/$render"
		elif ! diff -u "tests/golden/$render" "$out/$render"; then
			failed=1
		fi
	done
done

for golden in tests/golden/*; do
	if [ ! -e "$out/$(basename "$golden")" ]; then
		echo "$golden: no file of ci/ makes it" >&2
		failed=1
	fi
done

for values in tests/refused/*.yaml; do
	want=$(sed -n '1s/^# //p' "$values")
	if got=$("$helm" template gpumem . --kube-version v1.36.3 --values "$values" 2>&1 >/dev/null); then
		echo "$values: not refused" >&2
		failed=1
	else
		case $got in
		*"$want"*) ;;
		*) printf '%s: refused without saying "%s":\n%s\n' "$values" "$want" "$got" >&2; failed=1 ;;
		esac
	fi
done

exit $failed
