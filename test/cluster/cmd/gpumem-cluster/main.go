// Program gpumem-cluster runs a real Kubernetes cluster on this machine, with
// simulated GPUs: see package cluster.
//
//	gpumem-cluster up --node node1:gpus.json --node node2
//	gpumem-cluster kubectl get nodes
//	gpumem-cluster down
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		// A command that we ran for the user has already said what is wrong.
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "gpumem-cluster:", err)
		os.Exit(1)
	}
}
