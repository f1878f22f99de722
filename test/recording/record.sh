#!/bin/bash
# record.sh FOLDER: takes the pictures of the README from a demo that is up (KEEP=1 make demo).
#   defrag.svg  a terminal: explain and defrag
#   page.png    the page in Chromium
# It needs asciinema, npx (with the npm registry) and Chromium.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
demo=${GPUMEM_CACHE:-$HOME/.cache/gpumem}/clusters/demo
tmp=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$tmp"' EXIT

export KUBECONFIG=$demo/kubeconfig
PATH=$demo/bin:$demo/../../demo:$(ls -td "$demo"/../../components/helm/* | head -1):$PATH    # kubectl, kubectl-inspect-gpumem, helm
samples=$here/../../config/samples

# The state before defrag: each T4 has one notebook, so that neither has 12 GiB free.
kubectl delete --ignore-not-found --wait -f "$samples/train.yaml" -f "$samples/notebooks.yaml"
kubectl wait --for=delete pod -l app=notebooks --timeout=60s || true
kubectl apply -f "$samples/notebooks.yaml"
kubectl rollout status -f "$samples/notebooks.yaml" --timeout=60s
kubectl apply -f "$samples/train.yaml"
kubectl wait --for=condition=PodScheduled=false pod/train --timeout=60s

asciinema rec --quiet --overwrite --cols 104 --rows 22 --command "$here/session.sh" "$tmp/defrag.cast"
npx --yes svg-term-cli@2.1.1 --in "$tmp/defrag.cast" --out "$out/defrag.svg" --window --no-cursor

# The page shows more pods than the terminal. The chart serves it only with extender.page=true.
kubectl apply -f "$here/fleet.yaml"
for namespace in chat vision; do kubectl -n $namespace wait --for=condition=Ready pod --all --timeout=60s; done
helm upgrade gpumem "$here/../../charts/gpumem" --namespace gpumem-system --reset-then-reuse-values --set extender.page=true --wait --timeout=2m >/dev/null
kubectl -n gpumem-system port-forward deployment/gpumem-scheduler 8013 >/dev/null &
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
for _ in $(seq 60); do
  curl --silent --fail --output /dev/null http://localhost:8013/ && break
  sleep 1
done
"$browser" --headless --no-sandbox --hide-scrollbars --window-size=1100,400 --virtual-time-budget=20000 \
  --screenshot="$out/page.png" http://localhost:8013/ 2>/dev/null
