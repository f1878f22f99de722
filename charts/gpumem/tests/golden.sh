#!/bin/sh
# Renders the chart with each file of ci/ and compares the renders with
# tests/golden/, then checks that the chart refuses each file of tests/refused/ with
# the words of its first line.
#
# tests/golden/ has the whole render of the default values. For the other files of
# ci/ it has the differences, object by object: "+ KIND NAME" is an object that the
# base lacks, "- KIND NAME" one that only the base has, and "@@" leads to a change
# in an object by the lines that enclose it.
#
#   tests/golden.sh            compare; exit status 1 where something differs
#   tests/golden.sh --update   write the golden files
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

# base prints the name of the render that the golden file of $1 is a difference to:
# the default's, or one with the same scheduler.mode.
base() {
	case $1 in
	custom) echo extender ;;
	existing-secret) echo cert-manager ;;
	*) echo default ;;
	esac
}

# value prints the value of the key $2 at the top of ci/$1-values.yaml, or $3.
value() {
	found=$(sed -n "s/^$2: //p" "ci/$1-values.yaml")
	echo "${found:-$3}"
}

# split writes each object of the render $1, and its notes, to a file of the folder
# objects/$1: "KIND NAME", where NAME begins with gpumem whatever fullnameOverride is.
split() {
	mkdir -p "$out/objects/$1"
	cp "$out/renders/$1.txt" "$out/objects/$1/NOTES"
	awk -v dir="$out/objects/$1" -v full="$(value "$1" fullnameOverride gpumem)" '
		function flush() {
			if (index(name, full) == 1) name = "gpumem" substr(name, length(full) + 1)
			if (kind != "") { file = dir "/" kind " " name; printf "%s", text >> file; close(file) }
			text = kind = name = ""
		}
		/^---$/ { flush(); next }
		{ text = text $0 "\n" }
		/^kind: / { kind = $2 }
		/^  name: / && name == "" { name = $2 }
		END { flush() }' "$out/renders/$1.yaml"
}

# enclosed replaces the line numbers of a unified diff of the file $1 by the lines
# that enclose the hunk, so that a hunk stays the same when lines above it change.
enclosed() {
	awk 'FNR == NR { lines[FNR] = $0; next }
		/^@@ / {
			split($2, at, /[-,]/)
			path = ""
			for (i = at[2] + 0; i > 0; i--) {
				match(lines[i], /^ */)
				if (lines[i] == "" || lines[i] ~ /^ *#/ || (path != "" || i < at[2] + 0) && RLENGTH >= depth) continue
				depth = RLENGTH
				if (i < at[2] + 0) path = " " substr(lines[i], depth + 1) path
			}
			print "@@" path
			next
		}
		FNR > 2' "$1" -
}

# difference prints how the render $1 differs from that of its base. Where the values
# name the domain or the objects, the base is taken with those names.
difference() {
	of=$(base "$1")
	domain=$(value "$1" resourceDomain gpumem.dev)
	full=$(value "$1" fullnameOverride gpumem)
	app=$(value "$1" nameOverride gpumem)
	mkdir "$out/base"
	for object in "$out/objects/$of"/*; do
		sed -e "s/gpumem\.dev/$domain/g" -e "s/^\( *[A-Za-z]*[nN]ame: \)gpumem-/\1$full-/" \
			-e "s/^\( *[A-Za-z]*[nN]ame: \)gpumem\$/\1$full/" -e "s|^\( *app.kubernetes.io/name: \)gpumem\$|\1$app|" \
			"$object" >"$out/base/$(basename "$object")"
	done
	echo "# ci/$1-values.yaml, compared with ci/$of-values.yaml. Written by tests/golden.sh --update."
	if [ "$domain$full$app" != gpumem.devgpumemgpumem ]; then
		echo "# gpumem.dev stands for $domain, gpumem in names of objects for $full, the name gpumem in labels for $app."
	fi
	{ ls "$out/base"; ls "$out/objects/$1"; } | LC_ALL=C sort -u | while read -r object; do
		if [ ! -e "$out/objects/$1/$object" ]; then
			echo "- $object"
		elif [ ! -e "$out/base/$object" ]; then
			echo "+ $object"
			sed 's/^/+/' "$out/objects/$1/$object"
		elif ! diff -U1 "$out/base/$object" "$out/objects/$1/$object" >"$out/changes"; then
			echo "  $object"
			enclosed "$out/base/$object" <"$out/changes"
		fi
	done
	rm -rf "$out/base" "$out/changes"
}

mkdir "$out/renders"
for values in ci/*-values.yaml; do
	name=$(basename "$values" -values.yaml)
	"$helm" lint --strict --quiet --kube-version v1.36.3 --values "$values" .
	"$helm" template gpumem . --namespace gpumem-system --kube-version v1.36.3 \
		--values "$values" >"$out/renders/$name.yaml"
	"$helm" template gpumem "$out/chart" --namespace gpumem-system --kube-version v1.36.3 \
		--values "$values" --show-only templates/notes.yaml >"$out/renders/$name.txt"
	split "$name"
done
cp "$out/renders"/default.* "$out/"
compare default.yaml
compare default.txt
for values in ci/*-values.yaml; do
	name=$(basename "$values" -values.yaml)
	if [ "$name" != default ]; then
		difference "$name" >"$out/$name.diff"
		compare "$name.diff"
	fi
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
