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
differs=0

"$helm" lint --strict --quiet --kube-version v1.36.3 .

# helm shows the notes of an installed release only. In a copy of the chart they
# are an object.
cp -r . "$out/chart"
printf 'notes: |\n{{ include (print .Template.BasePath "/NOTES.txt") . | indent 2 }}\n' >"$out/chart/templates/notes.yaml"

# An installation sees the API server's version as it is, but --kube-version
# drops what a vendor appended before a template sees it. So the helper that
# makes a tag of it is asked by itself.
cat >"$out/chart/templates/versions.yaml" <<'EOF'
{{- range list "v1.36.3" "v1.33.1-eks-1a2b3c4" "v1.33.1+k3s1" "v1.33.1-gke.1234000" "v1.32.1-aliyun.1" "v1.34.2+rke2r1" "v1.37.0-rc.1" "v1.37.0-alpha.0.12+0123456789abcd" }}
{{ . | quote }}: {{ include "gpumem.kubeVersion" (dict "Capabilities" (dict "KubeVersion" (dict "Version" .))) }}
{{- end }}
EOF

# compare checks the render $1 against its golden file, or becomes it.
compare() {
	if [ "$update" = --update ]; then
		cp "$out/$1" "tests/golden/$1"
	elif ! diff -u "tests/golden/$1" "$out/$1"; then
		failed=1
		differs=1
	fi
}

"$helm" template gpumem "$out/chart" --kube-version v1.36.3 --show-only templates/versions.yaml >"$out/versions.yaml"
compare versions.yaml

for values in ci/*-values.yaml; do
	name=$(basename "$values" -values.yaml)
	"$helm" lint --strict --quiet --kube-version v1.36.3 --values "$values" .
	"$helm" template gpumem . --namespace gpumem-system --kube-version v1.36.3 \
		--values "$values" >"$out/$name.yaml"
	"$helm" template gpumem "$out/chart" --namespace gpumem-system --kube-version v1.36.3 \
		--values "$values" --show-only templates/notes.yaml >"$out/$name.txt"
	compare "$name.yaml"
	compare "$name.txt"
done

for golden in tests/golden/*; do
	if [ ! -e "$out/$(basename "$golden")" ]; then
		echo "$golden: no file of ci/ makes it" >&2
		failed=1
	fi
done

# Before 1.36, mutating policies are there where the API server has been told to serve them.
beta=admissionregistration.k8s.io/v1beta1
if "$helm" template gpumem . --kube-version v1.35.8 --set admission.setSchedulerName=true >/dev/null 2>&1; then
	echo "admission.setSchedulerName: not refused where the API server has no mutating policies" >&2
	failed=1
fi
"$helm" template gpumem . --kube-version v1.35.8 --api-versions "$beta/MutatingAdmissionPolicy" --set admission.setSchedulerName=true >"$out/beta.yaml"
if [ "$(grep -c "^apiVersion: $beta\$" "$out/beta.yaml")" != 2 ]; then
	echo "admission.setSchedulerName: no policy and binding of $beta on 1.35" >&2
	failed=1
fi
rm "$out/beta.yaml"

# The plugin's kube-scheduler must be neither newer than the API server nor two minors older.
for version in v1.34.6 v1.39.1; do
	if "$helm" template gpumem . --kube-version $version --set scheduler.mode=plugin >/dev/null 2>&1; then
		echo "scheduler.mode=plugin: not refused for Kubernetes $version" >&2
		failed=1
	fi
done

# installs sees that a render with the flags after $1 has the program $1 place pods.
installs() {
	program=$1
	shift
	if ! "$helm" template gpumem . "$@" | grep -q "^ *command: \[$program\]\$"; then
		echo "$*: $program is not installed" >&2
		failed=1
	fi
}
for version in v1.31.1 v1.34.6 v1.39.1; do installs gpumem-extender --kube-version $version; done
for pair in v1.35.8=1.35 v1.36.3=1.36 v1.37.2-gke.1=1.37 v1.38.1=1.37; do
	installs gpumem-scheduler --kube-version "${pair%=*}"
	if ! "$helm" template gpumem . --kube-version "${pair%=*}" | grep -q "^ *image: ghcr.io/gpumem/gpumem-scheduler:[0-9.]*-kube${pair#*=}\$"; then
		echo "Kubernetes ${pair%=*}: the image of gpumem-scheduler is not that of ${pair#*=}" >&2
		failed=1
	fi
done

if "$helm" template gpumem . --kube-version v1.34.6 --set labelPods=true >/dev/null 2>&1; then
	echo "labelPods: not refused for Kubernetes 1.34" >&2
	failed=1
fi

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

if [ $differs = 1 ]; then
	echo "The chart does not render as tests/golden/ has it: if that is meant, run make update." >&2
fi
exit $failed
