#!/bin/bash
# Vets the packages with changed Go files and the packages that import them directly, and runs
# their tests.
#
# A file is changed if it differs from the merge base with origin/main (or main, if there is no
# origin/main): in a commit, staged, unstaged or untracked. If no file differs, the last commit
# is the change. BASE replaces the merge base.
#
# quick leaves out tests that start a cluster or a browser, the seeds of the simulation, and, if
# the change has many importers, their tests that link client-go.
#
# Run it by "make quick [BASE=COMMIT]": the Makefile exports the flags that all its targets share,
# so that Go builds each package once.
set -eu -o pipefail
cd "$(dirname "$0")/.."
SECONDS=0
TIMEFORMAT='    %0R s; processor time %0U s user, %0S s system'

modules=". test test/cluster/components/kueue test/scheduler cmd/gpumem-scheduler"

# These tests need no cluster and still take minutes.
long='^(TestSim|TestFleet|TestPageIsAccessible)$|InChromium$'

# If more packages are affected, quick tests no importer that links client-go: each link
# takes about 4 s of processor time.
many=12

upstream=main
if git rev-parse -q --verify origin/main >/dev/null; then upstream=origin/main; fi
base=${BASE:-$(git merge-base HEAD "$upstream")}

# changed lists the Go files and the test data that differ from a commit.
changed() {
	git diff --name-only --no-renames "$1" -- '*.go' '**/testdata/**'
	git ls-files --others --exclude-standard -- '*.go' '**/testdata/**'
}
files=$(changed "$base")
if [ -z "$files" ]; then
	base=HEAD~1
	files=$(changed "$base")
fi
if [ -z "$files" ]; then
	echo "quick: no Go file has changed since $(git rev-parse --short "$base")"
	exit
fi

present=$(for file in $files; do if [[ $file == *.go && -f $file ]]; then echo "$file"; fi; done)
unformatted=$(echo "$present" | xargs -r gofmt -l)
if [ -n "$unformatted" ]; then
	printf 'quick: run gofmt -w on:\n%s\n' "$unformatted" >&2
	exit 1
fi

# moduleOf prints the module that contains a folder.
moduleOf() {
	local dir=$1
	while [ "$dir" != . ] && [ ! -f "$dir/go.mod" ]; do dir=$(dirname "$dir"); done
	echo "$dir"
}

declare -A folders # the changed folders of each module, relative to the module
for dir in $(for file in $files; do dirname "${file/\/testdata\/*//x}"; done | sort -u); do
	module=$(moduleOf "$dir")
	if [ "$dir" = "$module" ]; then name=.; else name=./${dir#"$module/"}; fi
	folders[$module]+=" $name"
	# Package pkg/cli has the tests of the commands below it, so that one program links client-go.
	if [[ $dir == pkg/cli/* ]]; then folders[$module]+=" ./pkg/cli"; fi
done

status=0
# step prints a command, runs it, and prints its time.
step() {
	printf '==> %s\n' "$*"
	time "$@" || status=1
}

# Lists of packages are split into words on purpose.
# shellcheck disable=SC2086
check() {
	local own touched changed importers packages tested without=""
	own=$(go list -m)
	changed=$(for name in $1; do echo "$own${name#.}"; done) # with packages that were removed
	touched=$(go list -e -f '{{if or .GoFiles .CgoFiles .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $1 | sort -u)
	importers=$(go list -e -f '{{range .Imports}}{{$.ImportPath}} {{.}}{{"\n"}}{{end}}' ./... |
		awk 'NR == FNR {changed[$1]; next} $2 in changed {print $1}' <(echo "$changed") - | sort -u)
	packages=$(printf '%s\n' $touched $importers | sort -u)
	if [ -z "$packages" ]; then return; fi
	printf 'quick: module %s: changed: %s\n' "$module" "$(echo $(echo "$changed" | sort -u))"
	printf 'quick: and the packages that import them: %d in all\n' "$(echo "$packages" | wc -l)"

	tested=$packages
	if [ "$(echo "$packages" | wc -l)" -gt $many ]; then
		without=$(go list -e -test -f '{{if eq .Name "main"}}{{range .Deps}}{{if eq . "k8s.io/client-go/kubernetes"}}{{$.ImportPath}}{{"\n"}}{{end}}{{end}}{{end}}' $packages |
			sed -n 's/\.test$//p' | grep -vxF "$touched" || true)
	fi
	if [ -n "$without" ]; then
		tested=$(echo "$packages" | grep -vxF "$without" || true)
		printf 'quick: too many to run the tests that link client-go, left out: %s\n' "$(echo $without)"
	fi

	step go vet $(echo "$packages" | sed "s|^$own|.|")
	if [ -z "$tested" ]; then return; fi
	case $module in
	test/scheduler) echo "    left out: the tests, since kube-scheduler in process takes more than a minute" ;;
	test*) step go test -count=1 -short -vet=off -skip "$long" $(echo "$tested" | sed "s|^$own|.|") ;; # they read files outside of their module
	*) step go test -short -vet=off -skip "$long" $(echo "$tested" | sed "s|^$own|.|") ;;
	esac
}

root=$PWD
for module in $modules; do
	if [ -z "${folders[$module]-}" ]; then continue; fi
	cd "$root/$module"
	check "${folders[$module]}"
done
if [ -n "${folders[.]-}${folders[test]-}" ]; then # the patches of known faults apply to any source file
	cd "$root/test"
	step go test -count=1 -vet=off ./sim/mutants
fi
echo "quick: $SECONDS s in all"
exit $status
