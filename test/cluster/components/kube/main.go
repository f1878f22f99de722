// Program kube holds the parts of Kubernetes that a cluster runs, in one
// binary, because they share most of their code: it builds in a fraction of
// the time and the space of separate ones. The name it is called by, or else
// its first argument, selects the part.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJobs may name a time zone.

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	cmd := command(name)
	if cmd == nil && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
		cmd = command(name)
	}
	if cmd == nil {
		fmt.Fprintln(os.Stderr, "kube: the first argument must be one of kube-apiserver, kube-controller-manager, kube-proxy, kube-scheduler, kubelet, kubectl")
		os.Exit(2)
	}
	if name == "kubectl" {
		// kubectl prints its own errors and chooses its own exit codes.
		if err := cli.RunNoErrOutput(cmd); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(cmd))
}

// command returns the part called name, or nil. Only the one that runs is
// made, because making one registers flags and feature gates of the process.
func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	default:
		return nil
	}
}
