#!/bin/sh
# Prints the size of the repository: lines of tracked Go files by wing, with comments and blank lines,
# lines of the chart's rendered files, and words of the docs.
#
#   test/sizes.sh
#
# Helpers are packages in product folders that only tests and test programs link. They count as test
# tooling.
set -eu
cd "$(dirname "$0")/.."

helpers='/(placementtest|kubetest|leasetest|plugintest|clitest|clirun|tabletest|pagetest|standin)/'

# lines counts the lines of the files that it reads from its input.
lines() { tr '\n' '\0' | xargs -0 -r cat | wc -l; }
tracked() { git ls-files -- "$@" | while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done; }
product() { tracked "$@" | grep '\.go$' | grep -vE "_test\.go$|$helpers" || true; }
line() { printf '%-48s %7d\n' "$1" "$2"; }

core=$(product pkg/core | lines)
kube=$(product pkg/kube | lines)
scheduler=$(product pkg/scheduler cmd/gpumem-extender cmd/gpumem-scheduler | lines)
node=$(product pkg/node cmd/gpumem-device-plugin | lines)
cli=$(product pkg/cli cmd/kubectl-inspect-gpumem | lines)
report=$(product pkg/report | lines)
process=$(product pkg/process | lines)
all=$(product pkg cmd | lines)
tests=$(tracked | grep '_test\.go$' | lines)
programs=$(tracked test | grep '\.go$' | grep -v '_test\.go$' | lines)
helping=$(tracked pkg cmd | grep '\.go$' | grep -v '_test\.go$' | grep -E "$helpers" | lines)

echo "Product: lines of Go in pkg and cmd, without tests and their helpers"
line "  core: pkg/core" "$core"
line "  kube: pkg/kube" "$kube"
line "  scheduler: pkg/scheduler and its programs" "$scheduler"
line "  node: pkg/node and its program" "$node"
line "  cli: pkg/cli and its program" "$cli"
line "  report: pkg/report" "$report"
line "  process: pkg/process" "$process"
line "  other folders" $((all - core - kube - scheduler - node - cli - report - process))
line "  all" "$all"
line "Tests: lines of _test.go files" "$tests"
echo "Test tooling: lines of Go that are no tests"
line "  test" "$programs"
line "  helpers in pkg and cmd" "$helping"
line "  all" $((programs + helping))
line "Chart: lines of rendered files" "$(tracked charts/gpumem/tests/golden | lines)"
line "Docs: words of pages and README files" "$(tracked '*.md' | grep -v '/testdata/' | tr '\n' '\0' | xargs -0 cat | wc -w)"
