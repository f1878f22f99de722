#!/bin/bash
# Types the commands of the README's recording, and runs them. record.sh prepares the pods.
prompt=$'\e[1;32m$\e[0m '

# type_and_run shows a command letter by letter, runs it, and waits so that people can read.
type_and_run() {
  local pause=$1 i
  shift
  clear
  printf '%s' "$prompt"
  for ((i = 0; i < ${#1}; i++)); do
    printf '%s' "${1:i:1}"
    sleep 0.04
  done
  sleep 0.4
  printf '\n'
  eval "$1"
  sleep "$pause"
}

type_and_run 4 "kubectl inspect gpumem"
type_and_run 6 "kubectl inspect gpumem explain train"
type_and_run 6 "kubectl inspect gpumem defrag train"
type_and_run 2 "kubectl inspect gpumem defrag train --apply"
kubectl wait --for=condition=Ready pod/train --timeout=60s >/dev/null
type_and_run 6 "kubectl inspect gpumem"
